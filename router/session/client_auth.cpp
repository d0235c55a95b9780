#include "session/client_auth.h"

#include "base/log.h"
#include "route/key.h"

#include <algorithm>

namespace interlock {

Result<std::shared_ptr<const LoginRules>, std::string> load_login_rules(const Settings &settings) {
    auto rules = std::make_shared<LoginRules>();
    rules->method = settings.pg_auth == "trust"  ? LoginRules::Method::trust
                    : settings.pg_auth == "cert" ? LoginRules::Method::cert
                                                 : LoginRules::Method::scram;
    rules->require_tls = settings.pg_tls == "require";
    if (settings.pg_tls != "disable") {
        if (settings.pg_tls_cert_file.empty() || settings.pg_tls_key_file.empty())
            return format("pg.tls = %s needs pg.tls_cert_file and pg.tls_key_file",
                          settings.pg_tls.c_str());
        auto context = wire::TlsContext::load(
            {settings.pg_tls_cert_file, settings.pg_tls_key_file, settings.pg_tls_ca_file});
        if (!context) return context.error();
        rules->tls = std::move(*context);
    }
    if (rules->method == LoginRules::Method::cert &&
        (!rules->tls || settings.pg_tls_ca_file.empty()))
        return std::string("pg.auth = cert needs TLS, and the authorities of client certificates "
                           "in pg.tls_ca_file");
    if (!settings.pg_auth_file.empty()) {
        auto users = read_auth_file(settings.pg_auth_file);
        if (!users) return users.error();
        rules->users = std::make_shared<const UserList>(std::move(*users));
    }
    return std::shared_ptr<const LoginRules>(std::move(rules));
}

Result<std::unique_ptr<ClientAuth>, std::string> ClientAuth::create(Loop &loop,
                                                                    const Settings &settings) {
    auto rules = load_login_rules(settings);
    if (!rules) return rules.error();
    // new: the constructor is private.
    return std::unique_ptr<ClientAuth>(new ClientAuth(loop, settings, std::move(*rules)));
}

const UserCache::Entry *UserCache::find(const std::string &name) const {
    const auto kept = entries_.find(name);
    return kept == entries_.end() ? nullptr : &kept->second.entry;
}

void UserCache::put(const std::string &name, Entry entry) {
    erase(name);
    entries_.emplace(name, Kept{std::move(entry), by_age_.insert(by_age_.end(), name)});
    if (entries_.size() > limit_) erase(std::string(by_age_.front()));
}

void UserCache::erase(const std::string &name) {
    const auto kept = entries_.find(name);
    if (kept == entries_.end()) return;
    by_age_.erase(kept->second.place);
    entries_.erase(kept);
}

ClientAuth::ClientAuth(Loop &loop, const Settings &settings,
                       std::shared_ptr<const LoginRules> rules)
    : loop_(loop), conninfo_(settings.catalog_conninfo), timeout_(settings.catalog_timeout),
      rules_(std::move(rules)) {}

void ClientAuth::reload(const Settings &settings) {
    timeout_ = settings.catalog_timeout;
    auto rules = load_login_rules(settings);
    if (!rules) {
        log_error("rules for logging in not reloaded, the old ones stay: %s",
                  rules.error().c_str());
        return;
    }
    rules_ = std::move(*rules);
}

Task<UserFound> ClientAuth::find(const LoginRules &rules, std::string user, Millis deadline) {
    if (rules.users) {
        UserFound found;
        const auto entry = rules.users->find(user);
        if (entry != rules.users->end()) found.user = entry->second;
        co_return found;
    }
    // The catalog has no such name: PostgreSQL would not even take the question.
    if (!valid_utf8(user)) co_return UserFound{};
    for (const UserCache *cache : {&known_, &unknown_}) {
        const UserCache::Entry *entry = cache->find(user);
        if (entry != nullptr && loop_.now() < entry->asked + cache_time)
            co_return UserFound{false, false, entry->user};
    }
    if (failed_at_ != 0 && loop_.now() < failed_at_ + failure_pause) co_return remembered(user);

    Waiting waiting;
    auto &others = waiting_[user];
    others.push_back(&waiting);
    if (others.size() == 1) {
        if (!lookup_)
            lookup_ = std::make_unique<UserLookup>(
                loop_, conninfo_, [this](const std::string &name, CatalogAnswer answer) {
                    answered(name, std::move(answer));
                });
        lookup_->ask(user, timeout_);
    }
    const Fired fired = co_await Wait(loop_, deadline).event(waiting.done);
    if (fired.none()) {
        std::erase(waiting_[user], &waiting);
        co_return UserFound{false, true, std::nullopt};
    }
    if (waiting.failed) co_return remembered(user);
    co_return UserFound{false, false, std::move(waiting.user)};
}

UserFound ClientAuth::remembered(const std::string &user) const {
    if (const UserCache::Entry *entry = known_.find(user)) return {false, false, entry->user};
    return {true, false, std::nullopt};
}

void ClientAuth::answered(const std::string &user, CatalogAnswer answer) {
    if (answer.failed) {
        if (failed_at_ == 0 || answer.error != error_)
            log_warning("users cannot be looked up in the catalog, those known go on: %s",
                        answer.error.c_str());
        failed_at_ = loop_.now();
        error_ = answer.error;
    } else {
        if (failed_at_ != 0) log_info("users can be looked up in the catalog again");
        failed_at_ = 0;
        (answer.user ? unknown_ : known_).erase(user);
        (answer.user ? known_ : unknown_).put(user, {answer.user, loop_.now()});
    }
    for (Waiting *waiting : std::exchange(waiting_[user], {})) {
        waiting->failed = answer.failed;
        waiting->user = answer.user;
        waiting->done.set();
    }
    waiting_.erase(user);
}

}  // namespace interlock
