// The line listener's face of a session: reads request lines, writes answer lines.
#pragma once

#include "base/fd.h"
#include "session/line_format.h"
#include "session/session.h"
#include "session/worker.h"
#include "wire/stream.h"

namespace interlock {

class LineClient final : public Client {
  public:
    /// Takes over an accepted, non-blocking socket.
    LineClient(Worker &worker, UniqueFd socket);

    /// Serves the client until it leaves or must go.
    [[nodiscard]] Task<void> serve();

    void stop_soon() override { wake_.set(); }

  private:
    enum class Next { served, need_more, closed };
    [[nodiscard]] Task<Next> serve_one_line();
    [[nodiscard]] Task<bool> read_more();
    [[nodiscard]] Task<bool> flush();
    [[nodiscard]] Task<void> say_goodbye();
    [[nodiscard]] Task<void> answer(std::string_view line);
    [[nodiscard]] Task<void> refuse(Code code, std::string message);
    void append_status();
    void charge_buffers();

    Worker &worker_;
    UniqueFd socket_;
    Watch watch_;
    wire::Stream stream_;
    Event wake_;
    ClientEnd end_;
    Buffer in_;
    Buffer out_;
    std::size_t charged_ = 0;   ///< of in_ and out_, in the worker's budget
    std::size_t searched_ = 0;  ///< bytes of in_ known to hold no line end
    Millis line_began_ = 0;
    bool discarding_ = false;  ///< the rest of an over-long line
    LineRequest request_;
    Session session_;
};

/// Accepts a client of the line listener: serves it, or tells it why not.
void accept_line_client(Worker &worker, UniqueFd socket);

}  // namespace interlock
