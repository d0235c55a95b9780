#include "sql/scatter.h"

namespace interlock::sql {

std::string edited(std::string_view text, const std::vector<TextEdit> &edits) {
    std::string result;
    std::size_t at = 0;
    for (const TextEdit &edit : edits) {
        result.append(text.substr(at, edit.offset - at)).append(edit.text);
        at = std::size_t{edit.offset} + edit.length;
    }
    return result.append(text.substr(at));
}

}  // namespace interlock::sql
