// A listening TCP socket whose connections go to a function.
#pragma once

#include "base/fd.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/task.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace interlock {

class Listener {
  public:
    using Accept = std::function<void(UniqueFd socket)>;

    /// Binds `address`, "HOST:PORT" ("[::1]:PORT" for IPv6), and listens. The error is one line.
    [[nodiscard]] static Result<std::unique_ptr<Listener>, std::string>
    open(Loop &loop, const std::string &address, Accept accept);

    /// Accepts until close(). Spawn it once.
    [[nodiscard]] Task<void> run();
    void close();

    [[nodiscard]] const std::string &address() const { return address_; }

  private:
    Listener(Loop &loop, UniqueFd socket, std::string address, Accept accept)
        : loop_(loop), socket_(std::move(socket)), watch_(std::in_place, loop, socket_.get()),
          address_(std::move(address)), accept_(std::move(accept)) {}

    Loop &loop_;
    UniqueFd socket_;
    std::optional<Watch> watch_;
    Event closed_;
    std::string address_;
    Accept accept_;
};

}  // namespace interlock
