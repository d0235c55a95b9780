// pgJDBC: statements, results and prepared statements; run by tests/test_drivers_java.py.

package drivers;

import static drivers.Checks.*;

import java.io.StringWriter;
import java.math.BigDecimal;
import java.sql.*;
import java.time.LocalDate;
import java.time.OffsetDateTime;
import java.util.*;
import org.postgresql.PGConnection;
import org.postgresql.PGStatement;
import org.postgresql.util.PGobject;

class Statements {
    static void statements() {
        check("creates, reads, updates and deletes", () -> {
            long key = S0.pop();
            try (var connection = connect()) {
                var seen = new ArrayList<Object>();
                seen.add(update(connection, NEW_ORDER, key, 7L, "it's 100% \\ \u2603"));
                seen.add(query(connection, "SELECT note, status, placed_at FROM orders WHERE account_id = ? AND order_id = ?",
                        key, 7));
                seen.add(update(connection, "UPDATE orders SET note = upper(note) WHERE account_id = ?", key));
                seen.add(query(connection, "SELECT o.note, i.line, i.price * i.quantity FROM orders o JOIN order_items i"
                        + " USING (account_id, order_id) WHERE account_id = ? ORDER BY o.order_id, i.line", key));
                seen.add(update(connection, "DELETE FROM orders WHERE account_id = ? AND order_id = 7", key));
                try (var statement = connection.createStatement()) {
                    seen.add(statement.execute("SELECT count(*) FROM orders WHERE account_id = " + key));
                    seen.add(rows(statement.getResultSet()));
                    seen.add(statement.executeUpdate("UPDATE account SET balance = 1 WHERE account_id = " + key));
                }
                return seen;
            }
        });
        check("generated keys and RETURNING", () -> {
            long key = S1.pop();
            try (var connection = connect(); var statement = connection.prepareStatement(NEW_ORDER,
                    new String[] {"order_id", "status"})) {
                statement.setLong(1, key);
                statement.setLong(2, 7);
                statement.setString(3, null);
                statement.executeUpdate();
                var seen = list(rows(statement.getGeneratedKeys()), null);
                try (var all = connection.prepareStatement("UPDATE account SET name = 'x' WHERE account_id = ?",
                        Statement.RETURN_GENERATED_KEYS)) {
                    all.setLong(1, key);
                    all.executeUpdate();
                    try (var keys = all.getGeneratedKeys()) { keys.next(); seen.set(1, keys.getString("name")); }
                }
                return seen;
            }
        });
        check("keys of any Java type find their row", () -> {
            long key = S0.pop();
            try (var connection = connect()) {
                return list(query(connection, BALANCE, key), query(connection, BALANCE, (int) key),
                        query(connection, BALANCE, (short) key), query(connection, BALANCE, new BigDecimal(key).longValueExact()),
                        query(connection, "SELECT balance FROM account WHERE account_id = ?::bigint", "" + key),
                        query(connection, "SELECT balance FROM account WHERE account_id = CAST(? AS integer)", (int) key));
            }
        });
        check("Java's types go there and back, in text and in binary", () -> {
            long key = S1.pop();
            var seen = new ArrayList<Object>();
            for (var threshold : List.of("5", "-1"))  // -1: binary from the first execution
                try (var connection = connect("prepareThreshold", threshold)) {
                    var json = new PGobject();
                    json.setType("jsonb");
                    json.setValue("{\"a\": \"\u00fc\"}");
                    seen.add(update(connection, "UPDATE account SET balance = ?, opened = ?, settings = ?, tags = ?, picture = ?"
                            + " WHERE account_id = ?", new BigDecimal("12345678.90"), LocalDate.of(2024, 2, 29), json,
                            connection.createArrayOf("text", new String[] {"a,b", "\u2603", null}), new byte[] {0, -1}, key));
                    update(connection, "UPDATE orders SET placed_at = ? WHERE account_id = ?",
                            OffsetDateTime.parse("2024-06-01T10:00:00.123456+02:00"), key);
                    for (int i = 0; i < 7; i++)
                        try (var statement = prepare(connection, "SELECT a.balance, a.opened, a.settings, a.tags, a.picture,"
                                + " o.placed_at, 1.5::float8, true, 7::int2 FROM account a JOIN orders o"
                                + " ON o.account_id = a.account_id WHERE a.account_id = ? LIMIT 1", key)) {
                            var result = statement.executeQuery();
                            result.next();
                            if (i % 6 == 0)
                                seen.add(list(result.getBigDecimal(1), result.getObject(2, LocalDate.class), result.getString(3),
                                        result.getArray(4).getArray(), result.getBytes(5).length,
                                        result.getObject(6, OffsetDateTime.class).toInstant(), result.getDouble(7),
                                        result.getBoolean(8), result.getInt(9)));
                        }
                }
            return seen;
        });
        check("batches, plain and rewritten", () -> {
            long key = S0.pop();
            var seen = new ArrayList<Object>();
            for (var rewrite : List.of("false", "true"))
                try (var connection = connect("reWriteBatchedInserts", rewrite)) {
                    connection.setAutoCommit(false);
                    try (var insert = connection.prepareStatement(NEW_ORDER)) {
                        for (long n = 1; n <= 40; n++) {
                            insert.setLong(1, key);
                            insert.setLong(2, n);
                            insert.setString(3, "batch " + n);
                            insert.addBatch();
                        }
                        seen.add(Arrays.stream(insert.executeBatch()).distinct().boxed().toList());
                    }
                    try (var statement = connection.createStatement()) {
                        statement.addBatch("UPDATE orders SET note = 'changed' WHERE order_id = 1 AND account_id = " + key);
                        statement.addBatch("DELETE FROM orders WHERE order_id < 41 AND account_id = " + key);
                        seen.add(Arrays.stream(statement.executeBatch()).boxed().toList());
                    }
                    connection.commit();
                }
            return seen;
        });
        check("an error in a batch says which statement failed", () -> {
            long key = S1.pop();
            try (var connection = connect(); var insert = connection.prepareStatement(NEW_ORDER)) {
                connection.setAutoCommit(false);
                for (long n : new long[] {1, 2, 2, 3}) {
                    insert.setLong(1, key);
                    insert.setLong(2, n);
                    insert.setString(3, "x");
                    insert.addBatch();
                }
                try {
                    insert.executeBatch();
                    return "no error";
                } catch (BatchUpdateException error) {
                    connection.rollback();
                    return list(error.getSQLState(), error.getUpdateCounts().length,
                            query(connection, "SELECT count(*) FROM orders WHERE account_id = ?", key));
                }
            }
        });
        check("fetchSize reads in parts inside a transaction", () -> {
            long key = S0.pop();
            try (var connection = connect()) {
                connection.setAutoCommit(false);
                try (var statement = prepare(connection, LINES, key); var other = prepare(connection, LINES, key)) {
                    statement.setFetchSize(2);
                    other.setFetchSize(1);
                    var first = statement.executeQuery();
                    var second = other.executeQuery();
                    var seen = new ArrayList<Object>();
                    while (first.next()) {  // two portals, in turn
                        second.next();
                        seen.add(list(first.getInt(1), second.getInt(1)));
                    }
                    first.close();
                    seen.add(update(connection, CREDIT, 1, key));
                    seen.add(second.next());
                    connection.commit();
                    return list(seen, balance(key));
                }
            }
        });
        check("statements over all shards, whole and in parts", () -> {
            var sql = "/* interlock: scatter */ SELECT order_id, account_id, placed_at FROM orders"
                    + " WHERE order_id > ? ORDER BY order_id DESC, account_id LIMIT ?";
            var totals = "/* interlock: scatter */ SELECT account_id, count(*), sum(order_id) FROM orders"
                    + " WHERE order_id > ? GROUP BY account_id ORDER BY account_id DESC LIMIT 9";
            var seen = new ArrayList<Object>();
            for (var mode : new String[] {"simple", "extended", "extendedForPrepared", "extendedCacheEverything"}) {
                try (var connection = connect("preferQueryMode", mode, "prepareThreshold", "1")) {
                    for (int i = 0; i < 3; i++) {
                        seen.add(query(connection, sql, 1000L, 20 + i));
                        seen.add(query(connection, totals, 1000L));
                    }
                    connection.setAutoCommit(false);
                    try (var statement = prepare(connection, sql, 1000L, 70); var other = prepare(connection, totals, 1000L)) {
                        statement.setFetchSize(7);
                        var first = statement.executeQuery();
                        for (int i = 0; i < 10 && first.next(); i++) seen.add(first.getLong(1));
                        seen.add(rows(other.executeQuery()));
                        seen.add(rows(first));
                    }
                    connection.commit();
                }
            }
            return seen;
        });
        check("scrollable and updatable results", () -> {
            long key = S1.pop();
            try (var connection = connect(); var statement = connection.prepareStatement(
                    "SELECT account_id, order_id, note FROM orders WHERE account_id = ? ORDER BY order_id",
                    ResultSet.TYPE_SCROLL_INSENSITIVE, ResultSet.CONCUR_UPDATABLE)) {
                statement.setLong(1, key);
                var result = statement.executeQuery();
                result.last();
                int count = result.getRow();
                result.absolute(2);
                result.updateString("note", "by the result");
                result.updateRow();
                result.first();
                result.moveToInsertRow();
                result.updateLong("account_id", key);
                result.updateLong("order_id", 7);
                result.updateString("note", "inserted");
                result.insertRow();
                return list(count, query(connection, "SELECT note FROM orders WHERE account_id = ? ORDER BY order_id", key));
            }
        });
        check("several statements in one text", () -> {
            long key = S0.pop();
            try (var connection = connect(); var statement = connection.createStatement()) {
                var seen = list(statement.execute("UPDATE account SET name = 'n' WHERE account_id = " + key + ";"
                        + " SELECT name FROM account WHERE account_id = " + key), statement.getUpdateCount(),
                        statement.getMoreResults(), null, null);
                seen.set(3, rows(statement.getResultSet()));
                seen.set(4, statement.getMoreResults());
                return seen;
            }
        });
        check("COPY of a query to the client", () -> {
            long key = S1.pop();
            try (var connection = connect()) {
                var out = new StringWriter();
                long count = connection.unwrap(PGConnection.class).getCopyAPI().copyOut(
                        "COPY (SELECT note FROM orders WHERE account_id = " + key + " ORDER BY order_id) TO STDOUT", out);
                return list(count, out.toString(), connection.isValid(5));
            }
        });
        check("simple query mode and extended for prepared mode", () -> {
            long key = S0.pop();
            var seen = new ArrayList<Object>();
            for (var mode : List.of("simple", "extended", "extendedForPrepared", "extendedCacheEverything"))
                try (var connection = connect("preferQueryMode", mode)) {
                    connection.setAutoCommit(false);
                    seen.add(update(connection, CREDIT, 1, key));
                    connection.commit();
                    seen.add(query(connection, "SELECT balance, ?::text FROM account WHERE account_id = ?", "it's", key));
                }
            return seen;
        });
    }

    static void prepared() {
        check("server-prepared statements after the threshold, and again after DISCARD", () -> {
            long here = S0.pop(), there = S1.pop();
            try (var connection = connect(); var statement = connection.prepareStatement(BALANCE)) {
                var seen = new ArrayList<Object>();
                for (int i = 0; i < 20; i++) {
                    statement.setLong(1, i % 2 == 0 ? here : there);
                    if (i % 6 == 0) seen.add(statement.unwrap(PGStatement.class).isUseServerPrepare());
                    seen.add(rows(statement.executeQuery()).get(0));
                }
                update(connection, "DEALLOCATE ALL");
                statement.setLong(1, here);
                seen.add(rows(statement.executeQuery()));
                update(connection, "DISCARD ALL");
                seen.add(rows(statement.executeQuery()));
                return seen;
            }
        });
        check("a server-prepared statement on changing backends", () -> {
            long key = S1.pop();
            try (var connection = connect("prepareThreshold", "1"); var statement = connection.prepareStatement(
                    "SELECT pg_backend_pid(), balance, tags FROM account WHERE account_id = ?")) {
                var seen = new ArrayList<Object>();
                int met = onChangingBackends(key, () -> {
                    statement.setLong(1, key);
                    var result = statement.executeQuery();
                    result.next();
                    seen.add(list(result.getBigDecimal(2), result.getArray(3).getArray()));
                    return result.getLong(1);
                });
                must(met > 1 || !ROUTER, met);
                return seen;
            }
        });
        check("more statements than the driver keeps prepared", () -> {
            long key = S0.pop();
            try (var connection = connect("prepareThreshold", "1", "preparedStatementCacheQueries", "3")) {
                int sum = 0;
                for (int round = 0; round < 3; round++)
                    for (int n = 0; n < 10; n++)
                        sum += query(connection, "SELECT " + n + " FROM account WHERE account_id = ?", key).size();
                return sum;
            }
        });
        check("the same text with another type of parameter", () -> {
            long key = S1.pop();
            try (var connection = connect("prepareThreshold", "1");
                    var statement = connection.prepareStatement("SELECT ? FROM account WHERE account_id = ?")) {
                var seen = new ArrayList<Object>();
                for (int i = 0; i < 3; i++)
                    for (Object value : list(5, "five", new BigDecimal("5.5"), true)) {
                        statement.setObject(1, value);
                        statement.setLong(2, key);
                        seen.add(rows(statement.executeQuery()));
                    }
                return seen;
            }
        });
    }
}
