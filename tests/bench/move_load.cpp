// Writers for the benchmark of moves: each in a thread of its own, one transaction after the other,
// until standard input ends. Prints one JSON object.
//
//   move_load CONNINFO CLIENTS TABLE KEYS MODE [RATE]
//
// KEYS is a file with one key a line. MODE: autocommit (an UPDATE of one row), transaction (BEGIN,
// two UPDATEs, COMMIT; the second row is the one after the first), mixed (each client one of them
// in turn). RATE: transactions a second of all clients together, at even intervals; without
// it as many as they can.
//
// Each UPDATE adds 1 to balance and version, and must find its row. What is printed: how many
// UPDATEs were acknowledged, errors, the transactions that took 5 ms or longer as [client, begin,
// end] in microseconds since 1970, and how many ended in each tenth of a second.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <libpq-fe.h>
#include <poll.h>
#include <unistd.h>

namespace {

constexpr std::int64_t slow_us = 5'000;
constexpr std::int64_t slot_us = 100'000;

std::int64_t now_us() {
    using namespace std::chrono;
    return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

struct Slow {
    int client;
    std::int64_t began, ended;
};

struct Settings {
    std::string conninfo, table;
    std::vector<std::string> keys;
    int clients = 1;
    std::string mode;
    double rate = 0;
    std::int64_t start = 0;
};

std::atomic<bool> stopped{false};

class Writer {
  public:
    Writer(const Settings &settings, int number)
        : settings_(settings), number_(number), random_(static_cast<unsigned>(number) + 1) {}

    void run() {
        session_ = PQconnectdb(settings_.conninfo.c_str());
        if (PQstatus(session_) != CONNECTION_OK) {
            note(PQerrorMessage(session_));
        } else {
            const std::string update = "UPDATE " + settings_.table +
                                       " SET balance = balance + 1, version = version + 1"
                                       " WHERE account_id = $1";
            if (expect(PQprepare(session_, "u", update.c_str(), 1, nullptr), PGRES_COMMAND_OK))
                write();
        }
        PQfinish(session_);
    }

    std::uint64_t acknowledged = 0, transactions = 0, failures = 0;
    std::vector<std::string> errors;
    std::vector<Slow> slow;
    std::vector<std::uint32_t> slots;

  private:
    void write() {
        const bool always = settings_.mode == "transaction";
        const bool never = settings_.mode == "autocommit";
        double due = static_cast<double>(now_us());
        for (std::uint64_t turn = 0; !stopped.load(std::memory_order_relaxed); ++turn) {
            if (settings_.rate > 0) wait_for(due);
            const std::int64_t began = now_us();
            const bool block = always || (!never && turn % 2 == 1);
            const std::uint64_t done = block ? transaction() : update(any());
            const std::int64_t ended = now_us();
            acknowledged += done;
            ++transactions;
            if (ended - began >= slow_us) slow.push_back({number_, began, ended});
            const auto slot = static_cast<std::size_t>((ended - settings_.start) / slot_us);
            if (slots.size() <= slot) slots.resize(slot + 1);
            ++slots[slot];
        }
    }

    void wait_for(double &due) {
        due += 1e6 * settings_.clients / settings_.rate;
        const double left = due - static_cast<double>(now_us());
        if (left > 0) ::usleep(static_cast<useconds_t>(left));
        // Who was held up does not make up for it with a burst.
        if (left < -1e6 * settings_.clients / settings_.rate) due = static_cast<double>(now_us());
    }

    std::size_t any() { return random_() % settings_.keys.size(); }

    std::uint64_t update(std::size_t place) {
        const char *const value = settings_.keys[place].c_str();
        PGresult *const result = PQexecPrepared(session_, "u", 1, &value, nullptr, nullptr, 0);
        const bool found =
            PQresultStatus(result) == PGRES_COMMAND_OK && std::string(PQcmdTuples(result)) == "1";
        if (!found && PQresultStatus(result) == PGRES_COMMAND_OK) {
            note("UPDATE " + std::string(PQcmdTuples(result)));
            PQclear(result);
            return 0;
        }
        return expect(result, PGRES_COMMAND_OK) ? 1 : 0;
    }

    std::uint64_t transaction() {
        // In the order of the keys, so that no two wait for each other.
        const std::size_t first = random_() % (settings_.keys.size() - 1);
        if (!expect(PQexec(session_, "BEGIN"), PGRES_COMMAND_OK)) return 0;
        if (update(first) == 1 && update(first + 1) == 1 &&
            expect(PQexec(session_, "COMMIT"), PGRES_COMMAND_OK))
            return 2;
        PQclear(PQexec(session_, "ROLLBACK"));
        return 0;
    }

    bool expect(PGresult *result, ExecStatusType wanted) {
        const bool right = PQresultStatus(result) == wanted;
        if (!right) note(PQresultErrorMessage(result));
        PQclear(result);
        if (!right && PQstatus(session_) != CONNECTION_OK) stopped = true;
        return right;
    }

    void note(const std::string &error) {
        ++failures;
        if (errors.size() < 5) errors.push_back(error);
    }

    const Settings &settings_;
    int number_;
    std::mt19937 random_;
    PGconn *session_ = nullptr;
};

std::string quoted(const std::string &text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        if (c == '\n')
            out += "\\n";
        else
            out += c;
    }
    return out + '"';
}

void print(const Settings &settings, const std::vector<Writer> &writers) {
    std::uint64_t acknowledged = 0, transactions = 0, failures = 0;
    std::string errors, slow;
    std::vector<std::uint32_t> slots;
    for (const Writer &writer : writers) {
        acknowledged += writer.acknowledged;
        transactions += writer.transactions;
        failures += writer.failures;
        for (const std::string &error : writer.errors)
            errors += (errors.empty() ? "" : ",") + quoted(error);
        for (const Slow &one : writer.slow)
            slow += (slow.empty() ? "[" : ",[") + std::to_string(one.client) + ',' +
                    std::to_string(one.began) + ',' + std::to_string(one.ended) + ']';
        slots.resize(std::max(slots.size(), writer.slots.size()));
        for (std::size_t i = 0; i < writer.slots.size(); ++i)
            slots[i] += writer.slots[i];
    }
    std::string counts;
    for (const std::uint32_t count : slots)
        counts += (counts.empty() ? "" : ",") + std::to_string(count);
    std::printf("{\"acknowledged\": %llu, \"transactions\": %llu, \"failures\": %llu,\n"
                "\"errors\": [%s],\n\"start\": %lld, \"per_tenth\": [%s],\n\"slow\": [%s]}\n",
                static_cast<unsigned long long>(acknowledged),
                static_cast<unsigned long long>(transactions),
                static_cast<unsigned long long>(failures), errors.c_str(),
                static_cast<long long>(settings.start), counts.c_str(), slow.c_str());
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 6) {
        std::fprintf(stderr, "move_load CONNINFO CLIENTS TABLE KEYS MODE [RATE]\n");
        return 2;
    }
    Settings settings;
    settings.conninfo = argv[1];
    settings.clients = std::atoi(argv[2]);
    settings.table = argv[3];
    std::ifstream file(argv[4]);
    for (std::string key; std::getline(file, key);)
        settings.keys.push_back(key);
    settings.mode = argv[5];
    if (argc > 6) settings.rate = std::atof(argv[6]);
    if (settings.keys.size() < 2) {
        std::fprintf(stderr, "move_load: at least two keys are needed\n");
        return 1;
    }
    settings.start = now_us();

    std::vector<Writer> writers;
    writers.reserve(static_cast<std::size_t>(settings.clients));
    for (int number = 0; number < settings.clients; ++number)
        writers.emplace_back(settings, number);
    std::vector<std::thread> threads;
    for (Writer &writer : writers)
        threads.emplace_back([&writer] { writer.run(); });
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    stopped = true;
    for (std::thread &thread : threads)
        thread.join();
    print(settings, writers);
    return 0;
}
