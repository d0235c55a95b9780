#include "session/user_lookup.h"

#include "base/control.h"

namespace interlock {

namespace {

std::string one_line(const ControlError &error) {
    std::string text = error.what();
    for (char &c : text)
        if (c == '\n') c = ' ';
    while (text.ends_with(' '))
        text.pop_back();
    return text;
}

}  // namespace

UserLookup::UserLookup(Loop &loop, std::string conninfo, Answered answered)
    : loop_(loop), conninfo_(std::move(conninfo)),
      receiver_(std::make_shared<Receiver>(Receiver{std::move(answered)})),
      thread_([this] { run(); }) {}

UserLookup::~UserLookup() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
    receiver_->answered = nullptr;
}

void UserLookup::ask(std::string user, std::int64_t timeout) {
    {
        const std::lock_guard lock(mutex_);
        questions_.push_back({std::move(user), timeout});
    }
    changed_.notify_one();
}

void UserLookup::run() {
    for (;;) {
        Question question;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [this] { return stopping_ || !questions_.empty(); });
            if (stopping_) return;
            question = std::move(questions_.front());
            questions_.pop_front();
        }
        CatalogAnswer found = answer(question);
        loop_.post([receiver = receiver_, user = std::move(question.user),
                    found = std::move(found)]() mutable {
            if (receiver->answered) receiver->answered(std::move(user), std::move(found));
        });
    }
}

CatalogAnswer UserLookup::answer(const Question &question) {
    // A connection that was idle may have died meanwhile, which says nothing about the catalog.
    const bool kept = catalog_ != nullptr;
    CatalogAnswer first = query(question);
    return first.failed && kept && catalog_ == nullptr ? query(question) : first;
}

CatalogAnswer UserLookup::query(const Question &question) {
    CatalogAnswer found;
    try {
        if (!catalog_)
            catalog_ = std::make_unique<ControlConnection>(conninfo_, "interlock logins",
                                                           question.timeout);
        const Rows rows = catalog_->query_within(
            question.timeout, "SELECT verifier, backend_login FROM interlock.client_verifier($1)",
            {Param::of_text(question.user)});
        if (rows.empty()) return found;
        ClientUser user;
        if (!rows.is_null(0, 0)) user.verifier = wire::parse_verifier(rows.view(0, 0));
        user.backend_login = rows.text(0, 1);
        found.user = std::move(user);
    } catch (const ControlError &error) {
        found.failed = true;
        found.error = one_line(error);
        if (!catalog_ || catalog_->broken() || error.sqlstate.starts_with("08") ||
            error.sqlstate.starts_with("57"))
            catalog_.reset();
    }
    return found;
}

}  // namespace interlock
