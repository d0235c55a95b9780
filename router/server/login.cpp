#include "server/login.h"

#include "base/log.h"

namespace interlock {

const std::vector<std::string> &reported_parameters() {
    static const std::vector<std::string> names{"server_version",
                                                "server_encoding",
                                                "client_encoding",
                                                "application_name",
                                                "is_superuser",
                                                "session_authorization",
                                                "DateStyle",
                                                "IntervalStyle",
                                                "TimeZone",
                                                "integer_datetimes",
                                                "in_hot_standby",
                                                "standard_conforming_strings",
                                                "default_transaction_read_only"};
    return names;
}

const std::vector<std::string> &compared_settings() {
    static const std::vector<std::string> names{"search_path",
                                                "DateStyle",
                                                "IntervalStyle",
                                                "TimeZone",
                                                "bytea_output",
                                                "extra_float_digits",
                                                "lc_monetary",
                                                "lc_numeric",
                                                "lc_time",
                                                "default_text_search_config",
                                                "xmlbinary",
                                                "xmloption",
                                                "array_nulls",
                                                "backslash_quote",
                                                "quote_all_identifiers",
                                                "transform_null_equals",
                                                "default_transaction_isolation",
                                                "row_security"};
    return names;
}

const std::string &LoginDefaults::value(std::string_view name) const {
    static const std::string none;
    for (const Values *values : {&settings, &reported})
        for (const auto &[known, value] : *values)
            if (known == name) return value;
    return none;
}

std::string LoginProfile::accept(const std::string &shard,
                                 std::shared_ptr<const LoginDefaults> &found) {
    if (defaults_ && found->settings == defaults_->settings) {
        if (shard == teacher_) doubted_ = false;
        found = defaults_;
        return {};
    }
    if (!defaults_ || shard == teacher_) {
        if (defaults_)
            log_info("sessions of %s on shard %s begin with other settings than before",
                     login_.empty() ? "the backend login" : ("login " + login_).c_str(),
                     shard.c_str());
        teacher_ = shard;
        defaults_ = found;
        doubted_ = false;
        return {};
    }
    doubted_ = true;
    for (const auto &[name, value] : found->settings) {
        const std::string &expected = defaults_->value(name);
        if (value != expected)
            return format("sessions of the login begin with %s = \"%s\" on this shard, with \"%s\" "
                          "on shard %s; HINT: give the setting one value on all shards (ALTER "
                          "ROLE, ALTER DATABASE or postgresql.conf)",
                          name.c_str(), value.c_str(), expected.c_str(), teacher_.c_str());
    }
    return "sessions of the login begin with other settings on this shard";
}

void LoginProfile::forget() {
    defaults_.reset();
    teacher_.clear();
    doubted_ = false;
}

}  // namespace interlock
