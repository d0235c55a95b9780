// pgJDBC: runs all checks in one virtual machine.

package drivers;

import java.sql.DriverManager;

public class Main {
    public static void main(String[] arguments) {
        DriverManager.setLoginTimeout(20);
        Connecting.connecting();
        Connecting.metadata();
        Statements.statements();
        Statements.prepared();
        Transactions.transactions();
        Transactions.control();
        Transactions.refusals();
        System.exit(0);
    }
}
