#include "tools/move_preflight.h"

#include <algorithm>
#include <array>

#include "tools/move_preflight_parts.h"

namespace interlock {

namespace {

struct Part {
    const char *subject;
    void (*look)(Preflight &check);
    bool of_tables = false;  ///< DDL may have changed it by the time when DDL is refused
};

constexpr std::array<Part, 13> parts{{
    {"the settings of the source", check_source_server},
    {"the settings of the target", check_target_server},
    {"encodings and collations", check_same_surroundings},
    {"the way from the target to the source", check_way_to_source},
    {"who owns the buckets", check_ownership},
    {"the guards", check_guards, true},
    {"the replica identities", check_identities, true},
    {"the definitions of the tables", check_definitions, true},
    {"the foreign keys", check_foreign_keys, true},
    {"the triggers", check_triggers, true},
    {"transactions in progress", check_transactions},
    {"leftovers of earlier moves", check_leftovers},
    {"the room on the target's disk", check_room},
}};

std::vector<MoveFinding> look(MoveSession &session, const MoveRequest &request, bool all) {
    Preflight check(session, request);
    for (const Part &part : parts) {
        if (!all && !part.of_tables) continue;
        try {
            part.look(check);
        } catch (const ControlError &error) {
            if (session.source().broken() || session.target().broken() ||
                session.catalog().broken())
                throw;
            check.refuse(std::string(part.subject) + " could not be checked: " + error.what(),
                         error.detail, error.hint);
        }
    }
    std::stable_partition(check.findings.begin(), check.findings.end(),
                          [](const MoveFinding &finding) {
                              return finding.severity == MoveFinding::Severity::refuse;
                          });
    return std::move(check.findings);
}

}  // namespace

bool has_refusal(const std::vector<MoveFinding> &findings) {
    return std::any_of(findings.begin(), findings.end(), [](const MoveFinding &finding) {
        return finding.severity == MoveFinding::Severity::refuse;
    });
}

std::vector<MoveFinding> preflight(MoveSession &session, const MoveRequest &request) {
    return look(session, request, true);
}

std::vector<MoveFinding> check_tables_again(MoveSession &session, const MoveRequest &request) {
    std::vector<MoveFinding> findings = look(session, request, false);
    std::erase_if(findings, [](const MoveFinding &finding) {
        return finding.severity != MoveFinding::Severity::refuse;
    });
    return findings;
}

}  // namespace interlock
