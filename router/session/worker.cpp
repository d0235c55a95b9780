#include "session/worker.h"

#include "session/route_wait.h"

namespace interlock {

LoginPools &Routes::pools_for(std::string_view login) const {
    const auto known = logins_.find(login);
    if (known != logins_.end()) return *known->second;
    std::string name(login);
    auto made = pools_->make(name, *table);
    return *logins_.emplace(std::move(name), std::move(made)).first->second;
}

Worker::Worker(Loop &loop, Settings settings)
    : loop_(loop), settings_(std::move(settings)),
      pools_(std::make_shared<Pools>(loop_, settings_)) {}

Worker::~Worker() {
    pools_->retire();
}

void Worker::use_table(std::shared_ptr<const RouteTable> table) {
    pools_->use(table);
    routes_ = std::make_shared<const Routes>(std::move(table), pools_, loop_.now());
    catalog.rejected_version = -1;
    catalog.rejected_why.clear();
    wake_route_waiters();
}

void Worker::catalog_looked(std::uint64_t number) {
    looked_ = number;
    wake_route_waiters();
}

void Worker::wake_route_waiters() {
    for (RouteWaiter *waiter : route_waiters_)
        waiter->woken.set();
}

void Worker::remove_client(Client *client) {
    clients_.erase(client);
    if (stopping_ && clients_.empty() && finished_) finished_();
}

void Worker::stop_soon(std::function<void()> finished) {
    stopping_ = true;
    finished_ = std::move(finished);
    wake_route_waiters();
    if (clients_.empty()) {
        finished_();
        return;
    }
    for (Client *client : clients_)
        client->stop_soon();
}

}  // namespace interlock
