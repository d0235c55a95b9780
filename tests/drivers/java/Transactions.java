// pgJDBC: transactions, errors, cancelling and the refusals of the router; run by tests/test_drivers_java.py.

package drivers;

import static drivers.Checks.*;

import java.sql.*;
import java.util.*;
import java.util.concurrent.*;
import org.postgresql.util.PSQLException;

class Transactions {
    static void transactions() {
        check("autocommit off: commit, rollback, and the failed transaction", () -> {
            long key = S1.pop();
            try (var connection = connect()) {
                connection.setAutoCommit(false);
                var seen = new ArrayList<Object>();
                update(connection, CREDIT, 10, key);
                seen.add(balance(key));
                connection.commit();
                seen.add(balance(key));
                update(connection, CREDIT, 100, key);
                connection.rollback();
                seen.add(balance(key));
                update(connection, CREDIT, 100, key);
                seen.add(error(() -> update(connection, CREDIT, -5000, key)));
                seen.add(error(() -> query(connection, BALANCE, key)));
                seen.add(error(connection::commit));  // pgJDBC notices that it was a rollback
                connection.rollback();
                seen.add(query(connection, BALANCE, key));
                connection.setAutoCommit(true);
                seen.add(update(connection, CREDIT, 1, key));
                return list(seen, balance(key));
            }
        });
        check("savepoints, and autosave", () -> {
            long key = S0.pop();
            var seen = new ArrayList<Object>();
            try (var connection = connect()) {
                connection.setAutoCommit(false);
                var early = connection.setSavepoint();
                update(connection, CREDIT, 1, key);
                var late = connection.setSavepoint("late");
                seen.add(error(() -> update(connection, CREDIT, -5000, key)));
                connection.rollback(late);
                update(connection, CREDIT, 10, key);
                connection.releaseSavepoint(early);
                connection.commit();
                seen.add(balance(key));
            }
            for (var mode : List.of("always", "conservative"))
                try (var connection = connect("autosave", mode)) {
                    connection.setAutoCommit(false);
                    update(connection, CREDIT, 1, key);
                    seen.add(error(() -> update(connection, CREDIT, -5000, key)));
                    seen.add(mode.equals("always") ? update(connection, CREDIT, 1, key) : error(() -> query(connection, BALANCE, key)));
                    connection.rollback();
                }
            return list(seen, balance(key));
        });
        check("isolation levels and read only", () -> {
            long key = S1.pop();
            String show = "SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')"
                    + " FROM account WHERE account_id = ?";
            try (var connection = connect(); var other = connect()) {
                var seen = new ArrayList<Object>();
                connection.setAutoCommit(false);
                for (int level : new int[] {Connection.TRANSACTION_SERIALIZABLE, Connection.TRANSACTION_REPEATABLE_READ,
                        Connection.TRANSACTION_READ_UNCOMMITTED, Connection.TRANSACTION_READ_COMMITTED}) {
                    connection.setTransactionIsolation(level);
                    seen.add(query(connection, show, key));
                    seen.add(connection.getTransactionIsolation() == level);
                    connection.commit();
                }
                connection.setReadOnly(true);
                seen.add(query(connection, show, key));
                seen.add(error(() -> update(connection, CREDIT, 1, key)));
                connection.rollback();
                connection.setReadOnly(false);
                seen.add(update(connection, CREDIT, 1, key));
                connection.commit();
                connection.setAutoCommit(true);
                connection.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
                connection.setReadOnly(true);
                seen.add(query(connection, show, key));
                seen.add(error(() -> update(connection, CREDIT, 1, key)));
                seen.add(query(other, show, key));
                return list(seen, balance(key));
            }
        });
        check("read only as a setting of the session", () -> {
            long key = S0.pop();
            try (var connection = connect("readOnlyMode", "always", "readOnly", "true")) {
                return list(error(() -> update(connection, CREDIT, 1, key)), query(connection, BALANCE, key));
            }
        });
        check("errors name the constraint, the table and the state", () -> {
            long key = S1.pop();
            try (var connection = connect()) {
                var seen = new ArrayList<Object>();
                for (var sql : List.of("UPDATE account SET balance = -1 WHERE account_id = ?",
                        "INSERT INTO account (account_id, name) VALUES (?, 'again')",
                        "INSERT INTO orders (account_id, order_id, status) VALUES (?, 9, NULL)",
                        "INSERT INTO order_items VALUES (?, 9, 1, 'x', 1, 1)",
                        "SELECT nothing FROM account WHERE account_id = ?",
                        "SELECT 1 / (balance - balance) FROM account WHERE account_id = ?",
                        "SELECT balance FROM account WHERE account_id = ? AND"))
                    try {
                        try (var statement = prepare(connection, sql, key)) { statement.execute(); }
                        seen.add("no error");
                    } catch (PSQLException error) {
                        var detail = error.getServerErrorMessage();
                        seen.add(list(error.getSQLState(), detail.getSeverity(), detail.getConstraint(), detail.getTable(),
                                detail.getColumn(), detail.getPosition()));
                    }
                return seen;
            }
        });
        check("a deferred constraint fails the commit", () -> {
            long key = S0.pop();
            try (var connection = connect()) {
                connection.setAutoCommit(false);
                update(connection, "INSERT INTO order_items VALUES (?, 9, 1, 'x', 1, 1)", key);
                return list(error(connection::commit), query(connection, LINES, key).size());
            }
        });
        check("warnings and notices", () -> {
            try (var connection = connect(); var statement = connection.createStatement()) {
                statement.execute("ROLLBACK");
                var warning = statement.getWarnings();
                return list(warning.getSQLState(), warning.getMessage());
            }
        });
    }

    static void control() {
        check("a query timeout cancels the statement and the connection goes on", () -> {
            long key = S0.pop();
            try (var holder = connect(); var connection = connect()) {
                holder.setAutoCommit(false);
                update(holder, CREDIT, 1, key);
                var seen = new ArrayList<Object>();
                try (var statement = prepare(connection, CREDIT, 1, key)) {
                    statement.setQueryTimeout(1);
                    seen.add(error(statement::executeUpdate));
                }
                holder.rollback();
                seen.add(update(connection, CREDIT, 2, key));
                return list(seen, balance(key));
            }
        });
        check("cancel from another thread", () -> {
            long key = S1.pop();
            try (var holder = connect(); var connection = connect(); var statement = prepare(connection, CREDIT, 1, key)) {
                holder.setAutoCommit(false);
                update(holder, CREDIT, 1, key);
                var result = CompletableFuture.supplyAsync(() -> {
                    try { return error(statement::executeUpdate); } catch (Exception e) { throw new RuntimeException(e); }
                });
                while (!result.isDone()) {
                    statement.cancel();
                    try { result.get(100, TimeUnit.MILLISECONDS); } catch (TimeoutException again) { }
                }
                holder.rollback();
                return list(result.get(), query(connection, BALANCE, key));
            }
        });
        check("the statement timeout of the session", () -> {
            long key = S0.pop();
            try (var holder = connect(); var connection = connect()) {
                holder.setAutoCommit(false);
                update(holder, CREDIT, 1, key);
                update(connection, "SET statement_timeout = '300ms'");
                var seen = list(error(() -> update(connection, CREDIT, 1, key)), query(connection, "SHOW statement_timeout"),
                        query(holder, "SHOW statement_timeout"));
                holder.rollback();
                return seen;
            }
        });
        check("large values both ways", () -> {
            long key = S1.pop();
            String text = "\u00fc\u2603".repeat(1_000_000);
            byte[] bytes = new byte[4_000_000];
            new Random(1).nextBytes(bytes);
            try (var connection = connect("prepareThreshold", "-1")) {
                update(connection, "UPDATE account SET name = ?, picture = ? WHERE account_id = ?", text, bytes, key);
                try (var statement = prepare(connection, "SELECT name, picture FROM account WHERE account_id = ?", key)) {
                    var result = statement.executeQuery();
                    result.next();
                    return list(result.getString(1).equals(text), Arrays.equals(result.getBytes(2), bytes));
                }
            }
        });
        check("twenty threads of ten transactions", () -> {
            long[] keys = {S0.pop(), S1.pop()};
            var pool = Executors.newFixedThreadPool(20);
            var results = new ArrayList<Future<Object>>();
            for (int n = 0; n < 20; n++) {
                long key = keys[n % 2];
                results.add(pool.submit(() -> {
                    try (var connection = connect("prepareThreshold", "2")) {
                        connection.setAutoCommit(false);
                        for (int i = 0; i < 10; i++) {
                            query(connection, "SELECT balance FROM account WHERE account_id = ? FOR UPDATE", key);
                            update(connection, CREDIT, 1, key);
                            connection.commit();
                        }
                        return null;
                    }
                }));
            }
            for (var result : results) result.get();
            pool.shutdown();
            return list(balance(keys[0]), balance(keys[1]));
        });
    }

    static void refusals() {
        check("router: refusals keep the connection and their code", () -> {
            long here = S0.pop(), there = S1.pop();
            try (var connection = connect()) {
                var seen = list(state(() -> query(connection, "SELECT balance FROM account")),
                        state(() -> update(connection, "DELETE FROM orders WHERE note = ?", "x")),
                        state(() -> query(connection, "SELECT 1 FROM account WHERE account_id IN (?, ?)", here, there)),
                        state(() -> update(connection, "CREATE TABLE t (a int)")),
                        state(() -> update(connection, "LISTEN x")));
                must(seen.equals(list("IL010", "IL010", "IL011", "IL024", "IL025")), seen);
                must(connection.isValid(5) && query(connection, BALANCE, here).size() == 1, "valid");
                connection.setAutoCommit(false);
                update(connection, CREDIT, -100, here);
                must(state(() -> update(connection, CREDIT, 100, there)).equals("IL012"), "IL012");
                must(state(() -> query(connection, BALANCE, here)).equals("25P02"), "25P02");
                connection.rollback();
                must(balance(here).equals("1000.00") && balance(there).equals("1000.00"), "balances");
                return null;
            }
        });
        check("router: a batch over two shards is refused whole", () -> {
            long here = S0.pop(), there = S1.pop();
            try (var connection = connect(); var insert = connection.prepareStatement(NEW_ORDER)) {
                connection.setAutoCommit(false);
                for (long key : new long[] {here, there}) {
                    insert.setLong(1, key);
                    insert.setLong(2, 7);
                    insert.setString(3, "x");
                    insert.addBatch();
                }
                must("IL012".equals(state(insert::executeBatch)), "the batch");
                connection.rollback();
                must(query(connection, LINES.replace("line", "order_id").replace("order_items", "orders")
                        .replace(", order_id", ""), here).size() == 3, "nothing stays");
                return null;
            }
        });
    }
}
