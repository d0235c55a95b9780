// What the pgJDBC programs share: the environment they are run with, the report (see ../checks.py), short forms of JDBC.

package drivers;

import java.io.StringWriter;
import java.sql.*;
import java.util.*;
import java.util.stream.*;

public class Checks {
    static final Map<String, String> ENV = System.getenv();
    static final boolean ROUTER = "router".equals(ENV.get("VIA"));
    static final Deque<Long> S0 = keys("KEYS_S0"), S1 = keys("KEYS_S1");
    static final String BALANCE = "SELECT balance FROM account WHERE account_id = ?";
    static final String CREDIT = "UPDATE account SET balance = balance + ? WHERE account_id = ?";
    static final String NEW_ORDER = "INSERT INTO orders (account_id, order_id, note) VALUES (?, ?, ?)";
    static final String LINES = "SELECT line FROM order_items WHERE account_id = ? ORDER BY order_id, line";

    interface Check { Object run() throws Exception; }
    interface Action { void run() throws Exception; }
    interface Ask { long run() throws Exception; }

    static final Set<String> SKIP = Set.of(ENV.getOrDefault("SKIP", "").split("\n"));

    static Deque<Long> keys(String name) {
        return Arrays.stream(ENV.get(name).split(",")).map(Long::valueOf).collect(Collectors.toCollection(ArrayDeque::new));
    }

    static void check(String name, Check body) {
        if (SKIP.contains(name) || (name.startsWith("router: ") && !ROUTER)) return;
        System.out.println(json(Map.of("begin", name)));
        var line = new LinkedHashMap<String, Object>();
        line.put("check", name);
        try {
            line.put("value", body.run());
        } catch (Throwable failure) {
            var trace = new StringWriter();
            failure.printStackTrace(new java.io.PrintWriter(trace));
            line.put("failed", trace.toString());
        }
        System.out.println(json(line));
        System.out.flush();
    }

    static String json(Object value) {
        if (value == null || value instanceof Boolean || value instanceof Integer || value instanceof Long) return "" + value;
        if (value instanceof Map<?, ?> map)
            return map.entrySet().stream().map(e -> json(e.getKey().toString()) + ":" + json(e.getValue()))
                    .collect(Collectors.joining(",", "{", "}"));
        if (value instanceof Collection<?> list)
            return list.stream().map(Checks::json).collect(Collectors.joining(",", "[", "]"));
        if (value instanceof Object[] array) return json(Arrays.asList(array));
        var out = new StringBuilder("\"");
        for (char c : value.toString().toCharArray())
            out.append(c == '"' || c == '\\' ? "\\" + c : c < ' ' || c > '~' ? String.format("\\u%04x", (int) c) : "" + c);
        return out.append('"').toString();
    }

    static List<Object> list(Object... values) { return Arrays.asList(values); }

    static Connection connect(String... options) throws SQLException {
        var properties = new Properties();
        properties.setProperty("user", ENV.get("PGUSER"));
        properties.setProperty("password", ENV.get("PGPASSWORD"));
        for (int i = 0; i < options.length; i += 2) properties.setProperty(options[i], options[i + 1]);
        return DriverManager.getConnection("jdbc:postgresql://" + ENV.get("PGHOST") + ":" + ENV.get("PGPORT") + "/"
                + ENV.get("PGDATABASE"), properties);
    }

    static PreparedStatement prepare(Connection connection, String sql, Object... values) throws SQLException {
        var statement = connection.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
        return statement;
    }

    static List<Object> rows(ResultSet result) throws SQLException {
        var all = new ArrayList<Object>();
        int columns = result.getMetaData().getColumnCount();
        while (result.next()) {
            var row = new ArrayList<Object>();
            for (int i = 1; i <= columns; i++) row.add(result.getString(i));
            all.add(columns == 1 ? row.get(0) : row);
        }
        return all;
    }

    static List<Object> query(Connection connection, String sql, Object... values) throws SQLException {
        try (var statement = prepare(connection, sql, values)) { return rows(statement.executeQuery()); }
    }

    static int update(Connection connection, String sql, Object... values) throws SQLException {
        try (var statement = prepare(connection, sql, values)) { return statement.executeUpdate(); }
    }

    /** As somebody else sees it. */
    static String balance(long key) throws SQLException {
        try (var other = connect()) { return (String) query(other, BALANCE, key).get(0); }
    }

    static List<Object> error(Action action) throws Exception {
        try {
            action.run();
            return list("no error", null);
        } catch (SQLException error) {
            return list(error.getClass().getSimpleName(), error.getSQLState());
        }
    }

    static String state(Action action) throws Exception { return (String) error(action).get(1); }

    static void must(boolean condition, Object seen) {
        if (!condition) throw new AssertionError(json(seen));
    }

    static <T> List<Object> column(ResultSet result, String... names) throws SQLException {
        var all = new ArrayList<Object>();
        while (result.next()) {
            var row = new ArrayList<Object>();
            for (var name : names) row.add(result.getString(name));
            all.add(row);
        }
        return all;
    }

    /** Calls `ask` while more and more other transactions hold backends of the same shard; how many it met. */
    static int onChangingBackends(long key, Ask ask) throws Exception {
        var met = new HashSet<Long>();
        var holders = new ArrayList<Connection>();
        try {
            met.add(ask.run());
            for (int i = 0; i < 3; i++) {
                var holder = connect();
                holders.add(holder);
                holder.setAutoCommit(false);
                query(holder, BALANCE, key);
                met.add(ask.run());
                met.add(ask.run());
            }
        } finally {
            for (var holder : holders) { holder.rollback(); holder.close(); }
        }
        return met.size();
    }
}
