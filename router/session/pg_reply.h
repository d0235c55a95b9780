// Messages the PostgreSQL listener writes itself. All append to a buffer and never fail.
#pragma once

#include "base/buffer.h"
#include "sql/refusal.h"

#include <cstdint>
#include <string_view>

namespace interlock::pg_reply {

/// ErrorResponse of severity ERROR: the message begins with the code ("R11: ..."), except for a
/// backend's own error (R31), which reads as the backend wrote it.
void error(Buffer &out, const Refusal &refusal);
/// ErrorResponse of severity FATAL; the connection is closed after it.
void fatal(Buffer &out, std::string_view sqlstate, std::string_view message,
           std::string_view detail = {}, std::string_view hint = {});
/// NoticeResponse of severity WARNING.
void warning(Buffer &out, std::string_view sqlstate, std::string_view message);
/// NoticeResponse of severity NOTICE, with the refusal's words and without its code's name.
void notice(Buffer &out, const Refusal &refusal);
void command_complete(Buffer &out, std::string_view tag);
void ready(Buffer &out, char transaction);
void parameter_status(Buffer &out, std::string_view name, std::string_view value);
void backend_key(Buffer &out, std::uint32_t pid, std::uint32_t secret);
/// A message without a body: ParseComplete '1', BindComplete '2', CloseComplete '3', NoData 'n',
/// EmptyQueryResponse 'I'.
void plain(Buffer &out, char type);
/// RowDescription of one text column.
void text_column(Buffer &out, std::string_view name);
/// DataRow of one text value.
void text_row(Buffer &out, std::string_view value);

}  // namespace interlock::pg_reply
