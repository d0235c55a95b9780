#include "server/connector.h"

#include <algorithm>
#include <cstdlib>
#include <libpq-fe.h>
#include <optional>
#include <system_error>
#include <thread>

namespace interlock {

void FinishConnection::operator()(pg_conn *connection) const {
    PQfinish(connection);
}
void FreeCancel::operator()(pg_cancel *cancel) const {
    PQfreeCancel(cancel);
}

namespace {

std::string one_line(const char *text) {
    std::string line(text == nullptr ? "" : text);
    std::replace(line.begin(), line.end(), '\n', ' ');
    while (!line.empty() && line.back() == ' ')
        line.pop_back();
    return line;
}

// What the loop's side and the thread's side share. The thread posts back to the loop, where the
// waiting coroutine may have given up; whoever comes last frees the connection.
struct Attempt {
    Event finished;
    Connection connection;
    std::string error;
};

template <typename Work>
bool run_on_thread(Work work) {
    try {
        std::thread(std::move(work)).detach();
        return true;
    } catch (const std::system_error &) {
        return false;
    }
}

}  // namespace

Result<ConnectParameters, std::string> connect_parameters(const std::vector<std::string> &conninfos,
                                                          const std::string &login,
                                                          Millis connect_timeout) {
    ConnectParameters parameters;
    const auto set = [&](const std::string &keyword, const std::string &value) {
        const auto it = std::find(parameters.keywords.begin(), parameters.keywords.end(), keyword);
        if (it != parameters.keywords.end()) {
            parameters.values[static_cast<std::size_t>(it - parameters.keywords.begin())] = value;
            return;
        }
        parameters.keywords.push_back(keyword);
        parameters.values.push_back(value);
    };
    set("fallback_application_name", "interlock");
    for (const std::string &conninfo : conninfos) {
        char *complaint = nullptr;
        PQconninfoOption *options = PQconninfoParse(conninfo.c_str(), &complaint);
        if (options == nullptr) {
            std::string error = one_line(complaint == nullptr ? "out of memory" : complaint);
            PQfreemem(complaint);
            return error;
        }
        for (const PQconninfoOption *option = options; option->keyword != nullptr; ++option)
            if (option->val != nullptr) set(option->keyword, option->val);
        PQconninfoFree(options);
    }
    const auto get = [&](const std::string &keyword) -> std::string {
        const auto it = std::find(parameters.keywords.begin(), parameters.keywords.end(), keyword);
        if (it == parameters.keywords.end()) return {};
        return parameters.values[static_cast<std::size_t>(it - parameters.keywords.begin())];
    };
    const auto names = [&](const std::string &keyword) {
        const std::string list = get(keyword);
        return 1 + static_cast<Millis>(std::count(list.begin(), list.end(), ','));
    };
    const Millis hosts = std::max(names("host"), names("hostaddr"));
    Millis seconds = std::max<Millis>(2, (connect_timeout / hosts + 999) / 1000);
    const Millis wanted = std::atoll(get("connect_timeout").c_str());
    if (wanted > 0) seconds = std::min(seconds, std::max<Millis>(2, wanted));
    set("connect_timeout", std::to_string(seconds));
    parameters.longest = std::max(connect_timeout, hosts * seconds * 1000);
    if (!login.empty()) set("user", login);
    set("client_encoding", "UTF8");
    // What a service file says in `options` must not be lost: then a server that has it off by
    // default is refused when it is greeted.
    if (get("service").empty() && std::getenv("PGSERVICE") == nullptr) {
        std::string options = get("options");
        const char *inherited = std::getenv("PGOPTIONS");
        if (options.empty() && inherited != nullptr) options = inherited;
        if (!options.empty()) options += ' ';
        set("options", options + "-c standard_conforming_strings=on");
    }
    set("gssencmode", "disable");
    return parameters;
}

Task<Result<Connection, std::string>> connect(Loop &loop, const ConnectParameters &parameters,
                                              Millis deadline) {
    auto attempt = std::make_shared<Attempt>();
    const bool started = run_on_thread([mailbox = loop.mailbox(), attempt, parameters] {
        std::vector<const char *> keywords;
        std::vector<const char *> values;
        for (std::size_t i = 0; i < parameters.keywords.size(); ++i) {
            keywords.push_back(parameters.keywords[i].c_str());
            values.push_back(parameters.values[i].c_str());
        }
        keywords.push_back(nullptr);
        values.push_back(nullptr);
        Connection connection(PQconnectdbParams(keywords.data(), values.data(), 0));
        std::string error;
        if (!connection)
            error = "out of memory";
        else if (PQstatus(connection.get()) != CONNECTION_OK)
            error = one_line(PQerrorMessage(connection.get()));
        // std::function must be copyable, a Connection is not.
        auto made = std::make_shared<Connection>(std::move(connection));
        mailbox->post([attempt, made, error = std::move(error)] {
            attempt->connection = std::move(*made);
            attempt->error = error;
            attempt->finished.set();
        });
    });
    if (!started) co_return std::string("no thread could be started for the connection attempt");
    const Fired fired = co_await Wait(loop, deadline).event(attempt->finished);
    if (fired.none()) co_return std::string("the connection attempt timed out");
    if (!attempt->error.empty()) co_return std::move(attempt->error);
    co_return std::move(attempt->connection);
}

Task<void> request_cancel(Loop &loop, std::shared_ptr<pg_cancel> key, Millis deadline) {
    auto delivered = std::make_shared<Event>();
    const bool started = run_on_thread([mailbox = loop.mailbox(), delivered, key = std::move(key)] {
        char error[256];
        PQcancel(key.get(), error, sizeof error);
        mailbox->post([delivered] { delivered->set(); });
    });
    if (started) co_await Wait(loop, deadline).event(*delivered);
}

}  // namespace interlock
