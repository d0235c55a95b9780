#include "sql/strict.h"

#include "base/log.h"
#include "sql/analysis.h"
#include "sql/strict_scanner.h"

#include <algorithm>
#include <optional>

namespace interlock::sql {

namespace {

// The protocol counts parameters in 16 bits.
constexpr std::size_t max_placeholders = 65535;
// PostgreSQL's bound of a target list; a longer one would cost us time to no end.
constexpr std::size_t max_names = 1664;
// Named with its schema: for types whose built-in operator is another type's (varchar, domains),
// an operator of the same name in any schema of the search_path would be preferred.
constexpr const char *equals = " operator(pg_catalog.=) ";

std::string fold(std::string_view word) {
    std::string folded(word);
    std::transform(folded.begin(), folded.end(), folded.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return folded;
}

// A recursive-descent matcher. Each match_* either advances and returns true, or records the
// refusal and returns false; the first refusal stands.
class StrictParser {
  public:
    StrictParser(std::string_view text, const std::vector<Token> &tokens, const RouteTable &routes)
        : text_(text), tokens_(tokens), routes_(routes) {}

    Result<Statement, Refusal> parse() {
        if (match_statement()) return std::move(statement_);
        return std::move(refusal_);
    }

  private:
    [[nodiscard]] const Token &peek() const { return tokens_[at_]; }
    [[nodiscard]] bool at_end() const { return peek().kind == TokenKind::end; }
    void advance() {
        if (!at_end()) ++at_;
    }
    [[nodiscard]] bool at_word(std::string_view lower) const {
        return peek().kind == TokenKind::word && same_word(peek().text, lower);
    }
    bool take_word(std::string_view lower) {
        if (!at_word(lower)) return false;
        advance();
        return true;
    }
    bool take_symbol(char c) {
        if (!peek().is_symbol(c)) return false;
        advance();
        return true;
    }

    bool refuse(Code code, std::string message, std::string hint = {}) {
        return refuse_at(peek(), code, std::move(message), std::move(hint));
    }
    bool refuse_at(const Token &token, Code code, std::string message, std::string hint = {}) {
        refusal_.code = code;
        refusal_.message = std::move(message);
        refusal_.hint = std::move(hint);
        refusal_.position = 1;
        for (std::size_t i = 0; i < token.offset; ++i)
            if ((static_cast<unsigned char>(text_[i]) & 0xC0) != 0x80) ++refusal_.position;
        return false;
    }
    [[nodiscard]] std::string here() const {
        return at_end() ? std::string("the end of the statement")
                        : "\"" + std::string(peek().text) + "\"";
    }
    bool refuse_syntax(const char *expected) {
        return refuse(
            Code::R01, format("%s where this profile expects %s", here().c_str(), expected),
            "The profile \"strict\" accepts only the statements listed in docs/application.md.");
    }
    bool need_word(const char *lower, const char *expected) {
        return take_word(lower) || refuse_syntax(expected);
    }
    bool need_symbol(char c, const char *expected) {
        return take_symbol(c) || refuse_syntax(expected);
    }

    bool match_statement() {
        if (take_word("begin")) return finish(Kind::begin);
        if (take_word("commit")) return finish(Kind::commit);
        if (take_word("rollback")) return finish(Kind::rollback);
        if (take_word("select")) return match_select();
        if (take_word("update")) return match_update();
        if (take_word("delete")) return match_delete();
        if (take_word("insert")) return match_insert();
        if (at_end()) return refuse(Code::R01, "the statement is empty");
        return refuse_syntax("BEGIN, COMMIT, ROLLBACK, SELECT, INSERT, UPDATE or DELETE");
    }

    // Options after BEGIN, COMMIT and ROLLBACK were refused by the scanner.
    bool finish(Kind kind) {
        statement_.kind = kind;
        if (!at_end()) return refuse_syntax("the end of the statement");
        return true;
    }

    bool match_select() {
        statement_.kind = Kind::select;
        std::vector<Token> names;
        const bool star = take_symbol('*');
        if (!star) {
            do {
                if (peek().kind != TokenKind::word) return refuse_syntax("a column name");
                if (names.size() >= max_names) return refuse_long_list();
                names.push_back(peek());
                advance();
            } while (take_symbol(','));
        }
        if (!need_word("from", "FROM")) return false;
        if (star && at_page()) return match_page();
        if (!match_table()) return false;
        if (peek().is_symbol(','))
            return refuse(Code::R20, "several tables in FROM are not accepted in this profile",
                          "Send one statement for each table.");
        std::string list = star ? "*" : "";
        for (const Token &name : names) {
            const auto column = find_column(name);
            if (!column) return false;
            if (!list.empty()) list += ", ";
            list += table().columns[*column].sql_name;
        }
        sql_ = "select " + list + " from " + table().sql_name;
        return match_where();
    }

    [[nodiscard]] bool at_page() const {
        return at_word("interlock") && tokens_.size() > at_ + 3 &&
               tokens_[at_ + 1].is_symbol('.') && tokens_[at_ + 2].kind == TokenKind::word &&
               same_word(tokens_[at_ + 2].text, "keyset_page") && tokens_[at_ + 3].is_symbol('(');
    }

    // keyset_page(keyset, NULL::table[, scope[, after[, before[, page_size]]]])
    bool match_page() {
        constexpr std::size_t most_values = 5;
        statement_.kind = Kind::page;
        at_ += 4;
        sql_ = "select * from interlock.keyset_page(";
        if (!match_placeholder(0) || !need_symbol(',', ",") || !need_word("null", "NULL::table"))
            return false;
        if (!need_symbol(':', "NULL::table") || !need_symbol(':', "NULL::table") || !match_table())
            return false;
        sql_ += ", null::" + table().sql_name;
        while (take_symbol(',')) {
            if (statement_.parameters.size() >= most_values)
                return refuse(Code::R27, "interlock.keyset_page() takes at most six arguments");
            sql_ += ", ";
            if (!match_placeholder(0)) return false;
        }
        sql_ += ")";
        if (!need_symbol(')', ") or ,") || !finish_data()) return false;
        return find_facts();
    }

    // The shards get it as they get a client's own: what is put into it is said by the analysis.
    bool find_facts() {
        Shape shape;
        make_shape(statement_.text, shape);
        auto analysed = analyse(statement_.text, shape, {routes_, {}});
        if (!analysed) {
            refusal_ = std::move(analysed.error());
            refusal_.position = 0;
            return false;
        }
        statement_.facts = std::make_shared<const Facts>(std::move((*analysed)[0].facts));
        if (statement_.facts->scatter) return true;
        return refuse(Code::R01, "the page is not one of all shards");
    }

    bool match_update() {
        statement_.kind = Kind::update;
        if (!match_table() || !need_word("set", "SET")) return false;
        sql_ = "update " + table().sql_name + " set ";
        std::size_t items = 0;
        do {
            if (items > 0) sql_ += ", ";
            if (++items > max_names) return refuse_long_list();
            if (!match_item()) return false;
        } while (take_symbol(','));
        return match_where();
    }

    bool match_item() {
        if (peek().kind != TokenKind::word) return refuse_syntax("a column name");
        const Token name = peek();
        const auto column = find_column(name);
        if (!column) return false;
        if (*column == table().key_column)
            return refuse(Code::R29,
                          format("the shard key \"%s\" cannot be updated",
                                 table().columns[*column].name.c_str()),
                          "Insert the row under its new key and delete the old one.");
        advance();
        if (!need_symbol('=', "=")) return false;
        sql_ += table().columns[*column].sql_name + " = ";
        const bool operand = peek().kind == TokenKind::word;
        if (operand) {
            const auto source = find_column(peek());
            if (!source) return false;
            advance();
            const bool plus = peek().is_symbol('+');
            if (!plus && !peek().is_symbol('-')) return refuse_syntax("+ or -");
            advance();
            sql_ += table().columns[*source].sql_name +
                    (plus ? " operator(pg_catalog.+) " : " operator(pg_catalog.-) ");
        }
        return match_placeholder(*column, operand);
    }

    bool match_delete() {
        statement_.kind = Kind::remove;
        if (!need_word("from", "FROM") || !match_table()) return false;
        if (at_word("using"))
            return refuse(Code::R20, "several tables in DELETE are not accepted in this profile");
        sql_ = "delete from " + table().sql_name;
        return match_where();
    }

    bool match_insert() {
        statement_.kind = Kind::insert;
        if (!need_word("into", "INTO") || !match_table()) return false;
        if (at_word("values") || at_word("default"))
            return refuse(Code::R10, "INSERT must name its columns, the shard key among them",
                          format("Write INSERT INTO %s (%s, ...) VALUES (?, ...).",
                                 table().sql_name.c_str(), key_name().c_str()));
        if (!need_symbol('(', "a list of columns in parentheses")) return false;
        std::vector<std::uint16_t> columns;
        std::string list;
        do {
            if (peek().kind != TokenKind::word) return refuse_syntax("a column name");
            const auto column = find_column(peek());
            if (!column) return false;
            advance();
            if (!list.empty()) list += ", ";
            list += table().columns[*column].sql_name;
            columns.push_back(*column);
            if (columns.size() > max_names) return refuse_long_list();
        } while (take_symbol(','));
        if (!need_symbol(')', ") or ,") || !need_word("values", "VALUES")) return false;
        if (std::find(columns.begin(), columns.end(), table().key_column) == columns.end())
            return refuse(Code::R10,
                          format("INSERT does not name the shard key \"%s\"", key_name().c_str()));
        sql_ = "insert into " + table().sql_name + " (" + list + ") values (";
        if (!need_symbol('(', "(")) return false;
        const std::size_t first_parameter = statement_.parameters.size();
        do {
            const std::size_t position = statement_.parameters.size() - first_parameter;
            if (position >= columns.size())
                return refuse(Code::R01, "INSERT has more values than columns");
            if (position > 0) sql_ += ", ";
            if (columns[position] == table().key_column) mark_key();
            if (!match_placeholder(columns[position])) return false;
        } while (take_symbol(','));
        if (!need_symbol(')', ") or ,")) return false;
        if (statement_.parameters.size() - first_parameter != columns.size())
            return refuse(Code::R01, "INSERT has more columns than values");
        sql_ += ")";
        if (peek().is_symbol(','))
            return refuse(Code::R01, "several VALUES rows are not accepted in this profile",
                          "Send one INSERT for each row.");
        return finish_data();
    }

    // [schema.]table
    bool match_table() {
        if (peek().kind != TokenKind::word) {
            if (peek().is_symbol('('))
                return refuse(Code::R21, "subqueries are not accepted in this profile");
            return refuse_syntax("a table name");
        }
        const Token first = peek();
        std::string name = fold(first.text);
        std::string schema;
        advance();
        if (take_symbol('.')) {
            if (peek().kind != TokenKind::word) return refuse_syntax("a table name");
            schema = std::move(name);
            name = fold(peek().text);
            advance();
        }
        bool ambiguous = false;
        statement_.table = routes_.find_table(schema, name, ambiguous);
        if (ambiguous)
            return refuse_at(first, Code::R26,
                             format("table \"%s\" exists in several schemas", name.c_str()),
                             "Qualify it: schema.table.");
        if (statement_.table == nullptr)
            return refuse_at(
                first, Code::R26, format("table \"%s\" is not a sharded table", name.c_str()),
                "Declare it with interlock.declare_table() and run \"interlock apply\".");
        return true;
    }

    bool match_where() {
        if (at_end())
            return refuse(Code::R10,
                          format("no condition on the shard key \"%s\"", key_name().c_str()),
                          format("Add WHERE %s = ?.", key_name().c_str()));
        if (!need_word("where", "WHERE")) return false;
        sql_ += " where ";
        if (peek().kind == TokenKind::word && !at_word("not") && !at_word("exists")) {
            const auto column = find_column(peek());
            if (!column) return false;
            if (*column != table().key_column) return refuse_unrouted();
        } else {
            return refuse_unrouted();
        }
        advance();
        sql_ += table().columns[table().key_column].sql_name;
        if (take_symbol('=')) {
            if (peek().kind != TokenKind::placeholder) return refuse_unrouted();
            sql_ += equals;
            mark_key();
            if (!match_placeholder(table().key_column)) return false;
            if (at_word("and") && !match_version()) return false;
        } else if (take_word("in")) {
            if (!match_in_list()) return false;
        } else {
            return refuse_unrouted();
        }
        if (at_word("or")) return refuse_or();
        return finish_data();
    }

    bool match_version() {
        const Token conjunction = peek();
        advance();
        const auto version = table().version_column;
        std::optional<std::uint16_t> column;
        if (peek().kind == TokenKind::word) {
            column = find_column(peek());
            if (!column) return false;
        }
        if (!version || column != version) {
            // A condition beside the key; with an OR anywhere it would not even pin the key.
            for (std::size_t i = at_; i < tokens_.size(); ++i)
                if (tokens_[i].kind == TokenKind::word && same_word(tokens_[i].text, "or"))
                    return refuse_or();
            return refuse_at(
                conjunction, Code::R01,
                "this profile accepts no condition beside the shard key but one on the table's "
                "version column",
                version ? format("Write AND %s = ?, or compare the row in the application.",
                                 table().columns[*version].name.c_str())
                        : std::string("Name the column in interlock.declare_table(), or compare "
                                      "the row in the application."));
        }
        advance();
        if (!need_symbol('=', "=")) return false;
        sql_ += " and " + table().columns[*version].sql_name + equals;
        return match_placeholder(*version);
    }

    bool match_in_list() {
        if (!need_symbol('(', "(")) return false;
        sql_ += std::string(equals) + "any (array[";
        bool first = true;
        do {
            if (!first) sql_ += ", ";
            first = false;
            mark_key();
            if (!match_placeholder(table().key_column)) return false;
        } while (take_symbol(','));
        sql_ += "])";
        return need_symbol(')', ") or ,");
    }

    bool refuse_long_list() {
        return refuse(Code::R01, format("more than %zu columns in a list", max_names));
    }

    bool refuse_or() {
        return refuse(Code::R10, "a condition with OR does not pin the shard key",
                      format("For several keys write WHERE %s IN (?, ...).", key_name().c_str()));
    }

    bool refuse_unrouted() {
        return refuse(
            Code::R10,
            format("the condition does not begin with the shard key \"%s\"", key_name().c_str()),
            format("Write WHERE %s = ? or WHERE %s IN (?, ...).", key_name().c_str(),
                   key_name().c_str()));
    }

    bool match_placeholder(std::uint16_t column, bool operand = false) {
        if (peek().kind != TokenKind::placeholder) return refuse_syntax("?");
        if (statement_.parameters.size() >= max_placeholders)
            return refuse(Code::R27, format("more than %zu parameters", max_placeholders));
        advance();
        statement_.parameters.push_back({column, operand});
        sql_ += "$" + std::to_string(statement_.parameters.size());
        return true;
    }
    void mark_key() {
        statement_.keys.push_back(static_cast<std::uint16_t>(statement_.parameters.size()));
    }

    bool finish_data() {
        if (!at_end()) return refuse_syntax("the end of the statement");
        statement_.text = std::move(sql_);
        return true;
    }

    // The column a word names; records R26 when the table has none of that name.
    std::optional<std::uint16_t> find_column(const Token &name) {
        const std::string folded = fold(name.text);
        const auto column = table().find_column(folded);
        if (!column)
            refuse_at(name, Code::R26,
                      format("column \"%s\" of table \"%s\" does not exist", folded.c_str(),
                             table().name.c_str()),
                      "If it was added to the table, run \"interlock apply\".");
        return column;
    }

    [[nodiscard]] const Table &table() const { return *statement_.table; }
    [[nodiscard]] const std::string &key_name() const {
        return table().columns[table().key_column].name;
    }

    std::string_view text_;
    const std::vector<Token> &tokens_;
    const RouteTable &routes_;
    std::size_t at_ = 0;
    Statement statement_;
    std::string sql_;
    Refusal refusal_;
};

}  // namespace

Result<Statement, Refusal> analyse_strict(std::string_view text, const RouteTable &routes) {
    auto tokens = scan_strict(text);
    if (!tokens) return std::move(tokens.error());
    return StrictParser(text, *tokens, routes).parse();
}

}  // namespace interlock::sql
