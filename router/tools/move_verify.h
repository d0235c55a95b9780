// Whether both sides have the same rows of the buckets: digests of every table, on both at once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/move_model.h"

namespace interlock {

struct MoveComparison {
    bool equal = true;
    std::int64_t rows = 0;   ///< at the source
    std::string difference;  ///< table, bucket and numbers of rows of the first; empty: none
};

class MoveVerifier {
  public:
    MoveVerifier(const MoveRequest &request, MoveSession &session);
    ~MoveVerifier();

    /// Connects, so that what follows need not.
    void open();

    /// How long a comparison takes now, in ms. What it finds does not count: rows are on their way.
    std::int64_t rehearse();

    /// Takes both sides' snapshots, which compare() uses and ends. Without them it compares what
    /// is there when it is called.
    void take_snapshots();

    /// Throws ControlError; 57014 if it takes longer than `limit` ms.
    MoveComparison compare(std::int64_t limit);

    /// Lets go of snapshots.
    void release() noexcept;

  private:
    struct Digest {
        std::string table;
        std::int32_t bucket = 0;
        std::int64_t rows = 0;
        std::string digest;
    };

    std::vector<Digest> digests(ControlConnection &side, std::int64_t limit) const;

    const MoveRequest &request_;
    MoveSession &session_;
    std::vector<std::string> tables_;
    std::unique_ptr<ControlConnection> source_, target_;
};

}  // namespace interlock
