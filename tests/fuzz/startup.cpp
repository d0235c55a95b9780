// Fuzz target: the first packet of a connection, whole and in pieces; the first byte says what may
// be asked for. And the messages of a password exchange, which must come to an end and let nobody
// in who does not know the password.
#include "wire/startup.h"
#include "check.h"
#include "wire/frame.h"
#include "wire/scram.h"

#include <string>
#include <string_view>

namespace {

using namespace interlock::wire;
using interlock::Buffer;

void check_login(const Startup &startup, std::size_t size) {
    HOLDS(!startup.user.empty() && startup.user.size() <= 63);
    HOLDS(!startup.database.empty() && startup.database.size() <= 63);
    std::size_t bytes = 0;
    for (const auto &[name, value] : startup.parameters) {
        bytes += name.size() + value.size();
        HOLDS((name + value).find('\0') == std::string::npos);
    }
    HOLDS(bytes <= size);
    Buffer out;
    append_negotiation(out, startup);
    Frame frame;
    HOLDS(peek_frame(out, 1 << 20, frame) == FrameState::ready && frame.size == out.size());
}

void read_startup(std::string_view bytes, bool may_encrypt, bool may_gss) {
    Startup startup;
    Fatal fatal;
    const StartupState state = parse_startup(bytes, may_encrypt, may_gss, startup, fatal);
    if (state == StartupState::need_more) {
        HOLDS(bytes.size() < 4 + max_startup_packet);
        return;
    }
    if (state == StartupState::refused) {
        HOLDS(fatal.sqlstate.size() == 5 && !fatal.message.empty());
        Buffer out;
        append_fatal(out, fatal);
        Frame frame;
        ErrorFields error;
        HOLDS(peek_frame(out, 1 << 20, frame) == FrameState::ready && frame.size == out.size());
        HOLDS(parse_error(frame.body, error) && error.sqlstate == fatal.sqlstate);
        return;
    }
    HOLDS(startup.size >= 8 && startup.size <= bytes.size());
    HOLDS(startup.size <= 4 + max_startup_packet);
    HOLDS(startup.kind != Startup::Kind::tls || may_encrypt);
    HOLDS(startup.kind != Startup::Kind::gssenc || may_gss);
    if (startup.kind == Startup::Kind::login) check_login(startup, startup.size);
    // One byte short it is not there yet, and what follows it does not matter.
    Startup again;
    const std::string_view packet = bytes.substr(0, startup.size);
    HOLDS(parse_startup(packet.substr(0, packet.size() - 1), may_encrypt, may_gss, again, fatal) ==
          StartupState::need_more);
    HOLDS(parse_startup(packet, may_encrypt, may_gss, again, fatal) == StartupState::ready);
    HOLDS(again.user == startup.user && again.parameters == startup.parameters);
}

void exchange(std::string_view bytes, bool tls) {
    ScramExchange scram("user", std::nullopt, tls, tls ? std::string(32, 'h') : "", "nonce");
    const std::size_t end = bytes.find('\n');
    using Outcome = ScramExchange::Outcome;
    if (scram.choose(tls ? "SCRAM-SHA-256-PLUS" : "SCRAM-SHA-256") != Outcome::go_on) return;
    Outcome outcome = scram.receive(bytes.substr(0, end));
    if (outcome == Outcome::go_on && end != std::string_view::npos) {
        // The fuzzer cannot guess the nonce's place; it may write it as N.
        std::string final(bytes.substr(end + 1));
        const std::string &reply = scram.reply();
        if (const std::size_t place = final.find("r=N"); place != std::string::npos)
            final.replace(place, 3, reply.substr(0, reply.find(',')));
        outcome = scram.receive(final);
        HOLDS(outcome == Outcome::malformed || outcome == Outcome::refused);
        HOLDS(scram.receive(final) == Outcome::malformed);
    }
    HOLDS(outcome != Outcome::proven);
    (void)parse_verifier(bytes);
    if (const auto verifier = parse_verifier("SCRAM-SHA-256$" + std::string(bytes)))
        HOLDS(verifier->iterations > 0 && !verifier->salt.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char *>(data) + 1, size - 1);
    const bool may_encrypt = (data[0] & 1U) != 0;
    if ((data[0] & 4U) != 0)
        exchange(bytes, may_encrypt);
    else
        read_startup(bytes, may_encrypt, (data[0] & 2U) != 0);
    for (const std::string &word : split_options(bytes))
        HOLDS(word.size() <= bytes.size());
    return 0;
}
