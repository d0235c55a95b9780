#include "session/line_format.h"

#include "base/hex.h"
#include "base/log.h"

namespace interlock {

namespace {

// Appends the decoded field; false when an escape is malformed or stands for NUL.
bool append_decoded(std::string_view field, std::string &out) {
    for (std::size_t i = 0; i < field.size(); ++i) {
        if (field[i] != '%') {
            out += field[i];
            continue;
        }
        if (i + 2 >= field.size()) return false;
        const int high = hex_digit(field[i + 1]);
        const int low = hex_digit(field[i + 2]);
        if (high < 0 || low < 0 || (high | low) == 0) return false;
        out += static_cast<char>(high << 4 | low);
        i += 2;
    }
    return true;
}

void append_text(Buffer &out, std::string_view text) {
    // One line an answer, whatever a message contains; libpq's have tabs in them.
    for (const char c : text)
        out.append(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
}

}  // namespace

bool parse_line(std::string_view line, std::size_t max_parameters, LineRequest &out,
                std::string &error) {
    out.decoded.clear();
    out.parameters.clear();
    if (line.find('\0') != std::string_view::npos) {
        error = "the line contains a NUL byte";
        return false;
    }
    const std::size_t tab = line.find('\t');
    const std::string_view verb = line.substr(0, tab);
    if (verb == "STATUS" && tab == std::string_view::npos) {
        out.verb = Verb::status;
        return true;
    }
    if (verb != "Q") {
        error = verb == "STATUS" ? "STATUS takes no fields"
                                 : "the line begins with neither Q nor STATUS";
        return false;
    }
    if (tab == std::string_view::npos) {
        error = "Q has no statement";
        return false;
    }
    out.verb = Verb::query;
    out.decoded.reserve(line.size());  // decoding only shrinks, so views into it stay valid
    std::string_view rest = line.substr(tab + 1);
    for (bool first = true, more = true; more; first = false) {
        const std::size_t end = rest.find('\t');
        const std::string_view field = rest.substr(0, end);
        more = end != std::string_view::npos;
        if (more) rest.remove_prefix(end + 1);
        if (!first && out.parameters.size() >= max_parameters) {
            error = format("the line has more than %zu parameters", max_parameters);
            return false;
        }
        if (!first && field == "\\N") {
            out.parameters.emplace_back(std::nullopt);
            continue;
        }
        const std::size_t start = out.decoded.size();
        if (!append_decoded(field, out.decoded)) {
            error = format("field %zu is not properly URL-encoded",
                           first ? std::size_t{1} : out.parameters.size() + 2);
            return false;
        }
        const std::string_view decoded(out.decoded.data() + start, out.decoded.size() - start);
        if (!valid_utf8(decoded)) {
            error = format("field %zu is not valid UTF-8",
                           first ? std::size_t{1} : out.parameters.size() + 2);
            return false;
        }
        if (first)
            out.sql = decoded;
        else
            out.parameters.emplace_back(decoded);
    }
    return true;
}

void JsonRows::describe(std::string_view body) {
    described_ = true;
    forms_.clear();
    wire::FieldReader fields(body);
    const unsigned columns = fields.int16();
    for (unsigned i = 0; i < columns && fields.ok(); ++i) {
        fields.string();
        fields.int32();
        fields.int16();
        const std::uint32_t type = fields.int32();
        fields.int16();
        fields.int32();
        fields.int16();
        switch (type) {
        case oid::int2:
        case oid::int4:
        case oid::int8:
        case oid::oid: forms_.push_back(Form::number); break;
        case oid::boolean: forms_.push_back(Form::boolean); break;
        default: forms_.push_back(Form::string); break;
        }
    }
}

void JsonRows::append_string(std::string_view value) {
    rows_.append('"');
    for (const char c : value) {
        switch (c) {
        case '"': rows_.append("\\\""); break;
        case '\\': rows_.append("\\\\"); break;
        case '\n': rows_.append("\\n"); break;
        case '\r': rows_.append("\\r"); break;
        case '\t': rows_.append("\\t"); break;
        default:
            if (static_cast<unsigned char>(c) < 0x20)
                rows_.append(format("\\u%04x", c));
            else
                rows_.append(c);
        }
    }
    rows_.append('"');
}

bool JsonRows::row(std::string_view body) {
    // Escaping makes a value at most six times longer: check before building it.
    if (rows_.size() + body.size() > limit_ || shared_ + body.size() > shared_limit_) return false;
    wire::FieldReader fields(body);
    const unsigned columns = fields.int16();
    rows_.append(count_ == 0 ? "[" : ",[");
    for (unsigned i = 0; i < columns && fields.ok(); ++i) {
        if (i > 0) rows_.append(',');
        const std::uint32_t length = fields.int32();
        if (length == 0xFFFFFFFFU) {
            rows_.append("null");
            continue;
        }
        const std::string_view value = fields.bytes(length);
        const Form form = i < forms_.size() ? forms_[i] : Form::string;
        if (form == Form::number)
            rows_.append(value);
        else if (form == Form::boolean)
            rows_.append(value == "t" ? "true" : "false");
        else
            append_string(value);
    }
    rows_.append(']');
    ++count_;
    shared_ += rows_.size() - charged_;
    charged_ = rows_.size();
    return fields.ok() && rows_.size() <= limit_;
}

void append_reply(Buffer &out, const Reply &reply, const JsonRows &rows) {
    const char tx = static_cast<char>(reply.transaction);
    const bool used_backend = reply.pid != 0;
    if (reply.refusal) {
        const Refusal &refusal = *reply.refusal;
        const std::string_view state = refusal.state();
        out.append(format("ERR code=%s tx=%c rv=%d sqlstate=%.*s",
                          code_entry(refusal.code).name.data(), tx, reply.route_version,
                          static_cast<int>(state.size()), state.data()));
        if (used_backend) out.append(format(" shard=%s pid=%d", reply.shard.c_str(), reply.pid));
        if (refusal.position > 0) out.append(format(" position=%d", refusal.position));
        out.append(" msg=");
        append_text(out, refusal.message);
        if (!refusal.detail.empty()) {
            out.append("; DETAIL: ");
            append_text(out, refusal.detail);
        }
        if (!refusal.hint.empty()) {
            out.append("; HINT: ");
            append_text(out, refusal.hint);
        }
        out.append('\n');
        return;
    }
    out.append(format("OK tag=%s shard=%s rv=%d tx=%c pid=", reply.tag.c_str(),
                      reply.shard.empty() ? "none" : reply.shard.c_str(), reply.route_version, tx));
    out.append(used_backend ? std::to_string(reply.pid) : std::string("none"));
    out.append(format(" count=%llu", static_cast<unsigned long long>(reply.count)));
    if (reply.no_transaction) out.append(" note=no_transaction");
    if (rows.described()) {
        out.append(" rows=[");
        out.append(rows.text());
        out.append(']');
    }
    out.append('\n');
}

std::string percent_encoded(std::string_view text) {
    std::string out;
    for (const char c : text) {
        const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                           (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.' || c == '~';
        if (plain)
            out += c;
        else
            out += format("%%%02X", static_cast<unsigned char>(c));
    }
    return out;
}

}  // namespace interlock
