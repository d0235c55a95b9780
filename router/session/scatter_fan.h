// The shards of one scatter, waited for together: one deadline, the client that gives up, and what
// the loss of a shard means.
#pragma once

#include "session/scatter_stream.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace interlock {

class ShardFan {
  public:
    /// `timeout`: for all waiting done here, together; 0: none.
    ShardFan(Loop &loop, Millis timeout, Event *gave_up);
    ~ShardFan() { abandon(false); }
    ShardFan(const ShardFan &) = delete;
    ShardFan &operator=(const ShardFan &) = delete;

    /// Queues for a backend of each. `partial`: those that are away or late are done without. It
    /// may begin again with other streams, in what is left of the time; the former ones must have
    /// come to an end, or be done without.
    void begin(std::vector<std::shared_ptr<ShardStream>> streams, bool partial);

    [[nodiscard]] std::size_t size() const { return streams_.size(); }
    [[nodiscard]] ShardStream &operator[](std::size_t i) { return *streams_[i]; }
    /// It is done without.
    [[nodiscard]] bool missing(std::size_t i) const { return missing_[i]; }
    [[nodiscard]] bool any_missing() const { return first_loss_.has_value(); }
    [[nodiscard]] std::vector<std::string> missing_names() const;
    /// Why the first of the missing shards is missing.
    [[nodiscard]] const Refusal &first_loss() const { return *first_loss_; }
    [[nodiscard]] bool partial() const { return partial_; }
    /// From now on no shard is done without.
    void forbid_partial() { partial_ = false; }

    enum class Wait : std::uint8_t {
        settled,  ///< no stream is at work
        changed,  ///< some still are
        over,     ///< refusal() says why the scatter has failed
    };
    /// Waits until a stream has changed, or none is at work. In `part` of the time at most, if that
    /// is not 0: then `settled` though some are.
    [[nodiscard]] Task<Wait> wait(Millis part = 0);
    /// Waits for one stream that is `waiting` and not busy. False: the scatter has failed. It may
    /// be missing then.
    [[nodiscard]] Task<bool> pull(std::size_t i);

    /// What is left of the time, at least 1; 0: there is no bound.
    [[nodiscard]] Millis left() const { return left_ == never ? 0 : std::max<Millis>(1, left_); }
    /// What half of the time left is; 0: there is no bound.
    [[nodiscard]] Millis half() const {
        return left_ == never ? 0 : std::max<Millis>(1, left_ / 2);
    }

    [[nodiscard]] Refusal &refusal() { return refusal_; }

    /// Lets all go; see ShardStream::abandon().
    void abandon(bool soon);

  private:
    [[nodiscard]] bool lose(std::size_t i, ShardStream::Fault fault, Refusal refusal);
    [[nodiscard]] bool out_of_time(const std::vector<std::size_t> &late);
    [[nodiscard]] Refusal timeout(const std::vector<std::size_t> &late) const;
    void spend(Millis since);

    Loop &loop_;
    Millis timeout_;
    Millis left_;
    bool partial_ = false;
    Event *gave_up_;
    Event changed_;
    std::vector<std::shared_ptr<ShardStream>> streams_;
    std::vector<bool> missing_;
    std::optional<Refusal> first_loss_;
    Refusal refusal_;
    bool late_ = false;  ///< the deadline has passed, and some were done without
};

}  // namespace interlock
