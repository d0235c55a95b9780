// Whether a client has closed its end while its statement waits, for routes or a backend.
#pragma once

#include "base/loop.h"

namespace interlock {

/// Of a client whose socket nobody reads meanwhile. What it has sent ahead stays where it is.
class ClientEnd {
  public:
    /// Has the watch's stray callback.
    explicit ClientEnd(Watch &client) : client_(client) { client.on_stray(stirred, this); }
    ClientEnd(const ClientEnd &) = delete;
    ClientEnd &operator=(const ClientEnd &) = delete;

    /// For the duration of one wait.
    class Listening {
      public:
        /// `end` may be null: then nothing is heard of it.
        explicit Listening(ClientEnd *end) : end_(end) {
            if (end_ == nullptr) return;
            end_->listening_ = true;
            end_->client_.arm_hangup();
        }
        ~Listening() {
            if (end_ != nullptr) end_->listening_ = false;
        }
        Listening(const Listening &) = delete;
        Listening &operator=(const Listening &) = delete;
        /// Set when the client has gone.
        [[nodiscard]] Event *gone() const { return end_ != nullptr ? &end_->gone_ : nullptr; }

      private:
        ClientEnd *end_;
    };

    /// It was found to have gone during a wait.
    [[nodiscard]] bool gone() const { return gone_.is_set(); }

  private:
    static void stirred(void *self) {
        auto *end = static_cast<ClientEnd *>(self);
        if (!end->listening_) return;
        if (end->client_.hung_up())
            end->gone_.set();
        else
            end->client_.arm_hangup();  // it has sent something, that is all
    }

    Watch &client_;
    Event gone_;
    bool listening_ = false;
};

}  // namespace interlock
