"""A table with a column of every type that a keyset may sort by, and values that are hard to sort or to carry."""

from random import Random

# name -> (type, values as text)
COLUMNS = {
    "int2": ("smallint", ["-32768", "-1", "0", "1", "7", "32767"]),
    "int4": ("integer", ["-2147483648", "-1", "0", "1", "70000", "2147483647"]),
    "int8": ("bigint", ["-9223372036854775808", "-1", "0", "1", "5000000000", "9223372036854775807"]),
    "numeric": ("numeric", ["-Infinity", "-1e30", "-10.5", "-10.25", "-0.00001", "0", "0.0", "1", "1.0", "1.00", "1.01",
                            "9.99", "10", "99999", "100000.0001", "1e40", "Infinity", "NaN"]),
    "float4": ("real", ["-Infinity", "-1.5", "-0", "0", "1e-40", "1.5", "16777217", "Infinity", "NaN"]),
    "float8": ("double precision", ["-Infinity", "-1e300", "-0", "0", "5e-324", "0.1", "0.30000000000000004", "1e300",
                                    "Infinity", "NaN"]),
    "bool": ("boolean", ["true", "false"]),
    "text": ('text COLLATE "C"', ["", "a", "A", "a b", "ab", "aa", "b", "ä", "z", "zz", "€", "𝄞", "\x01", "a\x01",
                                  "\x7f", "long " * 50]),
    "icu": ('text COLLATE "und-x-icu"', ["", "a", "A", "á", "Á", "ab", "a b", "b", "B", "ä", "z", "Z", "ø", "co-op",
                                         "coop", "CO-OP", "ﬁ", "fi", "1", "10", "2", "€", "𝄞"]),
    "varchar": ('varchar(20) COLLATE "C"', ["", "a", "a ", "a  ", "b", "B", "ab"]),
    "bpchar": ('char(8) COLLATE "C"', ["", "a", "a ", "ab", "a b", "b", "B", "12345678"]),
    "bytea": ("bytea", [r"\x", r"\x00", r"\x0000", r"\x01", r"\x7f", r"\x80", r"\xff", r"\xff00", r"\x00ff"]),
    "uuid": ("uuid", ["00000000-0000-0000-0000-000000000000", "00000000-0000-0000-0000-000000000001",
                      "7fffffff-0000-0000-0000-000000000000", "80000000-0000-0000-0000-000000000000",
                      "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
    "date": ("date", ["-infinity", "4713-01-01 BC", "1999-12-31", "2000-01-01", "2024-02-29", "5874897-12-31",
                      "infinity"]),
    "time": ("time", ["00:00:00", "00:00:00.000001", "12:00:00", "23:59:59.999999", "24:00:00"]),
    "timestamp": ("timestamp", ["-infinity", "4713-11-24 00:00:00 BC", "1999-12-31 23:59:59.999999",
                                "2000-01-01 00:00:00", "2024-05-01 12:00:00.000001", "294276-12-31 23:59:59.999999",
                                "infinity"]),
    "timestamptz": ("timestamptz", ["-infinity", "4713-11-24 00:00:00+00 BC", "1999-12-31 23:59:59.999999+00",
                                    "2000-01-01 00:00:00+00", "2024-05-01 12:00:00.000001+02",
                                    "2024-05-01 10:00:00.000001+00", "infinity"]),
    "interval": ("interval", ["-178000000 years", "-1 day", "-24:00:00", "0", "24:00:00", "1 day", "29 days 24:00:00",
                              "30 days", "1 mon", "1 mon 00:00:00.000001", "1 year", "360 days", "178000000 years"]),
    "mood": ("mood", ["sad", "ok", "happy", "angry"]),
}
# An enum whose order is neither that of its labels nor that of their making.
TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
ALTER TYPE mood ADD VALUE 'ok' BEFORE 'happy';
ALTER TYPE mood ADD VALUE 'angry' BEFORE 'sad';
CREATE TABLE sample (id bigint PRIMARY KEY, owner bigint NOT NULL, grp integer NOT NULL,
    """ + ", ".join(f"v_{name} {kind}" for name, (kind, _) in COLUMNS.items()) + ");\n"


def make_samples(count=240, seed=4):
    """Rows as text: id, owner, grp, and of each type a value or, often, NULL."""
    random = Random(seed)
    ids = random.sample(range(-1000, 1000), count)
    return [(number, random.randint(1, 300), place % 2,
             *(None if random.random() < 0.2 else random.choice(values) for _, values in COLUMNS.values()))
            for place, number in enumerate(ids)]
