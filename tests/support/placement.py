"""Where a bigint key lives, computed a second time, from what docs/decisions.md says of it."""

MASK = (1 << 64) - 1


def splitmix64(key):
    z = (key + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return z - (1 << 64) if z >= (1 << 63) else z


def bucket_of(key, buckets=16):
    return splitmix64(key) % buckets  # Python's modulo is the floor one


def reference_shard(key, shards=2):
    """The shard of a key in the reference cluster: 16 buckets, even ones on s0, odd ones on s1."""
    return f"s{bucket_of(key) % shards}"


def keys_on(shard, count, start=1):
    """The first `count` keys from `start` that live on `shard` of the reference cluster."""
    found, key = [], start
    while len(found) < count:
        if reference_shard(key) == shard:
            found.append(key)
        key += 1
    return found


def keys_in_bucket(bucket, count, start=1, buckets=16):
    found, key = [], start
    while len(found) < count:
        if bucket_of(key, buckets) == bucket:
            found.append(key)
        key += 1
    return found
