// pgJDBC: connecting and the metadata; run by tests/test_drivers_java.py.

package drivers;

import static drivers.Checks.*;

import java.sql.*;
import java.util.*;
import org.postgresql.PGConnection;

class Connecting {
    static void connecting() {
        check("connects with default settings and knows the server", () -> {
            try (var connection = connect()) {
                var data = connection.getMetaData();
                return list(data.getDatabaseProductName(), data.getDatabaseProductVersion(), data.getUserName(),
                        connection.getCatalog(), connection.getSchema(), connection.isValid(5),
                        connection.getTransactionIsolation(), connection.isReadOnly(), connection.getAutoCommit(),
                        connection.unwrap(PGConnection.class).getParameterStatuses().keySet().stream()
                                .filter(n -> Set.of("TimeZone", "DateStyle", "client_encoding", "server_version",
                                        "session_authorization", "integer_datetimes").contains(n)).sorted().toList());
            }
        });
        check("a wrong password is refused with 28P01", () -> error(() -> connect("password", "wrong").close()));
        check("TLS modes and target server types", () -> {
            var seen = new ArrayList<Object>();
            for (var mode : List.of("disable", "allow", "prefer", "require", "verify-full"))
                try (var connection = connect("sslmode", mode, "sslrootcert", ENV.get("PGSSLROOTCERT"))) {
                    seen.add(query(connection, "SELECT 1"));
                }
            for (var type : List.of("any", "primary", "preferSecondary"))
                try (var connection = connect("targetServerType", type)) { seen.add(query(connection, "SELECT 1")); }
            seen.add(error(() -> connect("targetServerType", "secondary").close()));
            return seen;
        });
        check("options and the application's name are in force", () -> {
            try (var connection = connect("options", "-c statement_timeout=7s", "ApplicationName", "shop",
                    "currentSchema", "public")) {
                return list(query(connection, "SHOW statement_timeout"), query(connection, "SHOW application_name"),
                        query(connection, "SHOW search_path"), query(connection, "SHOW extra_float_digits"),
                        connection.getClientInfo("ApplicationName"), connection.getSchema());
            }
        });
    }

    static void metadata() {
        check("the catalog's metadata", () -> {
            try (var connection = connect()) {
                var data = connection.getMetaData();
                return list(column(data.getTables(null, "public", "%", new String[] {"TABLE"}), "TABLE_NAME", "TABLE_TYPE"),
                        column(data.getColumns(null, "public", "orders", null), "COLUMN_NAME", "TYPE_NAME", "IS_NULLABLE",
                                "COLUMN_DEF"),
                        column(data.getPrimaryKeys(null, "public", "order_items"), "COLUMN_NAME", "KEY_SEQ"),
                        column(data.getImportedKeys(null, "public", "order_items"), "PKTABLE_NAME", "FKCOLUMN_NAME",
                                "DEFERRABILITY"),
                        column(data.getExportedKeys(null, "public", "account"), "FKTABLE_NAME"),
                        column(data.getIndexInfo(null, "public", "account", true, false), "INDEX_NAME", "COLUMN_NAME"),
                        column(data.getCatalogs(), "TABLE_CAT").contains(list("app")),
                        column(data.getSchemas(), "TABLE_SCHEM").contains(list("public")),
                        column(data.getTypeInfo(), "TYPE_NAME").size() > 10, data.getMaxConnections() > 0,
                        column(data.getTablePrivileges(null, "public", "account"), "GRANTEE", "PRIVILEGE").size() > 0);
            }
        });
        check("metadata of results and parameters before they are bound", () -> {
            try (var connection = connect(); var statement = connection.prepareStatement(
                    "SELECT name, balance AS b FROM account WHERE account_id = ? AND name > ?")) {
                var result = statement.getMetaData();
                var parameters = statement.getParameterMetaData();
                return list(result.getColumnName(2), result.getColumnTypeName(1), result.getColumnTypeName(2),
                        result.getPrecision(2), result.getScale(2), result.isNullable(1), result.getTableName(1),
                        parameters.getParameterCount(), parameters.getParameterTypeName(1), parameters.getParameterTypeName(2));
            }
        });
    }
}
