#include "plan/key_refusal.h"

#include "base/log.h"

namespace interlock {

namespace {

std::string bucket_name(const char *word, const RouteTable &routes, const KeyTarget &target,
                        bool with_keyspace) {
    std::string name = format("%s %d", word, target.bucket);
    if (with_keyspace)
        name += format(" of keyspace %s", routes.keyspaces[target.keyspace].name.c_str());
    return name;
}

}  // namespace

[[gnu::cold]] Refusal several_shards(const RouteTable &routes, const KeyTarget &first,
                                     const KeyTarget &second) {
    Refusal refusal = make_refusal(Code::R11, "the statement's keys are on several shards",
                                   "Send one statement for each shard, or for each key.");
    const bool keyspaces = first.keyspace != second.keyspace;
    refusal.detail = format("%s is on shard %s, %s on shard %s.",
                            bucket_name("Bucket", routes, first, keyspaces).c_str(),
                            routes.shards[first.shard].name.c_str(),
                            bucket_name("bucket", routes, second, keyspaces).c_str(),
                            routes.shards[second.shard].name.c_str());
    return refusal;
}

[[gnu::cold]] std::string type_name(std::uint32_t type_oid) {
    switch (type_oid) {
    case oid::boolean: return "boolean";
    case oid::bytea: return "bytea";
    case oid::int8: return "bigint";
    case oid::int2: return "smallint";
    case oid::int4: return "integer";
    case oid::text: return "text";
    case oid::varchar: return "character varying";
    case oid::oid: return "oid";
    case oid::float4: return "real";
    case oid::float8: return "double precision";
    case oid::numeric: return "numeric";
    case oid::uuid: return "uuid";
    case oid::bpchar: return "character";
    case oid::int2_array: return "smallint[]";
    case oid::int4_array: return "integer[]";
    case oid::int8_array: return "bigint[]";
    case oid::text_array: return "text[]";
    case oid::varchar_array: return "character varying[]";
    case oid::uuid_array: return "uuid[]";
    case oid::bytea_array: return "bytea[]";
    default: return format("type with OID %u", type_oid);
    }
}

}  // namespace interlock
