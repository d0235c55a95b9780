#include "session/worker.h"

#include "base/log.h"

#include <algorithm>

namespace interlock {

Worker::Worker(Loop &loop, Settings settings) : loop_(loop), settings_(std::move(settings)) {}

void Worker::use_table(std::shared_ptr<const RouteTable> table) {
    auto routes = std::make_shared<Routes>();
    for (const Shard &shard : table->shards) {
        std::shared_ptr<Pool> pool;
        if (routes_) {
            for (const auto &candidate : routes_->pools)
                if (candidate->shard() == shard.name && candidate->conninfo() == shard.conninfo)
                    pool = candidate;
        }
        if (!pool)
            pool = std::make_shared<Pool>(
                loop_, settings_, ExpectedIdentity{table->cluster_id, shard.name}, shard.conninfo);
        routes->pools.push_back(std::move(pool));
    }
    if (routes_) {
        for (const auto &old : routes_->pools)
            if (std::find(routes->pools.begin(), routes->pools.end(), old) == routes->pools.end())
                old->retire();
    }
    routes->table = std::move(table);
    routes_ = std::move(routes);
    catalog.rejected_version = -1;
    catalog.rejected_why.clear();
}

void Worker::remove_client(Client *client) {
    clients_.erase(client);
    if (stopping_ && clients_.empty() && finished_) finished_();
}

void Worker::stop_soon(std::function<void()> finished) {
    stopping_ = true;
    finished_ = std::move(finished);
    if (clients_.empty()) {
        finished_();
        return;
    }
    for (Client *client : clients_)
        client->stop_soon();
}

}  // namespace interlock
