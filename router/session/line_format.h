// The line protocol's format: requests in, answers out. Pure.
//
//     Q<TAB>sql<TAB>param1<TAB>param2...        fields URL-encoded; a raw \N is NULL
//     STATUS
//     OK tag=UPDATE shard=s0 rv=1 tx=T pid=1457801 count=1
//     ERR code=R12 tx=E rv=1 sqlstate=IL012 msg=...
//
// Documented for clients in docs/application.md.
#pragma once

#include "base/buffer.h"
#include "base/result.h"
#include "plan/plan.h"
#include "session/relay.h"
#include "session/session.h"

#include <string>
#include <string_view>
#include <vector>

namespace interlock {

enum class Verb { query, status };

struct LineRequest {
    Verb verb = Verb::query;
    std::string decoded;                ///< the decoded fields, back to back
    std::string_view sql;               ///< into `decoded`
    std::vector<Parameter> parameters;  ///< into `decoded`

    /// Bytes held.
    [[nodiscard]] std::size_t memory() const {
        return decoded.capacity() + parameters.capacity() * sizeof(Parameter);
    }
};

/// Parses one line (without its end). The error says what is malformed (R02). Views in `out` are
/// valid until it is used again.
[[nodiscard]] bool parse_line(std::string_view line, std::size_t max_parameters, LineRequest &out,
                              std::string &error);

/// Collects rows as JSON: [[1,"bob",null],[2,"eve",true]]. Integers are numbers, booleans true or
/// false, NULL null, everything else a string.
class JsonRows : public RowSink {
  public:
    /// `limit` bounds this answer; `shared`, bounded by `shared_limit`, counts all answers not yet
    /// taken by their clients.
    JsonRows(std::size_t limit, std::size_t &shared, std::size_t shared_limit)
        : limit_(limit), shared_(shared), shared_limit_(shared_limit) {}
    ~JsonRows() override { shared_ -= charged_; }
    JsonRows(const JsonRows &) = delete;
    JsonRows &operator=(const JsonRows &) = delete;

    void describe(std::string_view body) override;
    [[nodiscard]] bool row(std::string_view body) override;
    [[nodiscard]] std::size_t longest_row() const override { return limit_; }

    [[nodiscard]] bool described() const { return described_; }
    [[nodiscard]] std::uint64_t count() const { return count_; }
    [[nodiscard]] std::string_view text() const { return rows_.view(); }

  private:
    enum class Form : std::uint8_t { string, number, boolean };
    void append_string(std::string_view value);

    std::size_t limit_;
    std::size_t &shared_;
    std::size_t shared_limit_;
    std::size_t charged_ = 0;
    bool described_ = false;
    std::uint64_t count_ = 0;
    std::vector<Form> forms_;
    Buffer rows_;
};

/// Appends the answer line.
void append_reply(Buffer &out, const Reply &reply, const JsonRows &rows);

/// Percent-encodes everything but unreserved characters, for values of STATUS.
[[nodiscard]] std::string percent_encoded(std::string_view text);

}  // namespace interlock
