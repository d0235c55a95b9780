// Settings: file and flags, ranges, units, and what the messages say.
#include "base/command_line.h"
#include "base/setting_table.h"
#include "base/settings_file.h"
#include "base/startup_error.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <unistd.h>

namespace interlock {
namespace {

Settings from_text(const std::string &text) {
    Settings settings;
    read_settings_text(text, "interlock.ini", settings);
    return settings;
}

/// What stops the text from being read, message and hint.
std::string fault(const std::string &text) {
    try {
        (void)from_text(text);
    } catch (const StartupError &error) {
        return error.what();
    }
    return "";
}

std::string flag_fault(const std::vector<std::string> &args) {
    try {
        (void)load_settings(args);
    } catch (const StartupError &error) {
        return error.what();
    }
    return "";
}

class File {
  public:
    explicit File(const std::string &text) {
        const int fd = mkstemp(path_);
        EXPECT_GE(fd, 0);
        close(fd);
        write(text);
    }
    ~File() { std::remove(path_); }
    void write(const std::string &text) const { std::ofstream(path_) << text; }
    std::string path() const { return path_; }

  private:
    char path_[32] = "/tmp/interlock-settings-XXXXXX";
};

TEST(Settings, FileAndFlagsAndFlagsWin) {
    const File file("[catalog]\nconninfo = dbname=a\n[pool]\nsize = 8\nidle_check=2s\n");
    const Settings settings =
        load_settings({"-c", file.path(), "--pool-size=9", "--log-level", "debug"});
    EXPECT_EQ(settings.catalog_conninfo, "dbname=a");
    EXPECT_EQ(settings.pool_size, 9U);
    EXPECT_EQ(settings.idle_check, 2000);
    EXPECT_EQ(settings.log_level, "debug");
    EXPECT_EQ(settings.line_listen, Settings{}.line_listen);
}

TEST(Settings, AValueIsTheRestOfItsLine) {
    const Settings settings = from_text("\xEF\xBB\xBF# comment\r\n; another\r\n [ catalog ] \r\n"
                                        "conninfo =  host=h password='a #;= b'  \r\n");
    EXPECT_EQ(settings.catalog_conninfo, "host=h password='a #;= b'");
}

TEST(Settings, Units) {
    const Settings settings =
        from_text("[line]\nmax_line = 2MB\nline_timeout = 90 s\nwrite_timeout=250\n"
                  "[limits]\nmax_result_bytes=4096\nshutdown_timeout=2min\n"
                  "[pool]\nstatement_timeout = 1500us\n");
    EXPECT_EQ(settings.max_line, std::size_t{2} << 20);
    EXPECT_EQ(settings.line_timeout, 90000);
    EXPECT_EQ(settings.write_timeout, 250);
    EXPECT_EQ(settings.max_result_bytes, 4096U);
    EXPECT_EQ(settings.shutdown_timeout, 120000);
    EXPECT_EQ(settings.statement_timeout, 2);
}

TEST(Settings, MessagesNameFileAndLine) {
    EXPECT_EQ(fault("[pool]\n\nsizes = 3\n"),
              "interlock.ini:3: unknown setting \"pool.sizes\"\nHINT:  did you mean pool.size?");
    EXPECT_EQ(fault("[pool]\npoll_interval = 3\n"),
              "interlock.ini:2: unknown setting \"pool.poll_interval\"\n"
              "HINT:  did you mean catalog.poll_interval?");
    EXPECT_EQ(fault("[pol]\n"),
              "interlock.ini:1: unknown section [pol]\nHINT:  did you mean [pool]?");
    EXPECT_EQ(fault("size = 3\n"),
              "interlock.ini:1: setting \"size\" stands before the first [section]");
    EXPECT_EQ(fault("[pool]\nsize = 3\nsize = 4\n"),
              "interlock.ini:3: setting \"pool.size\" is given twice\n"
              "HINT:  It was given in line 2 before.");
    EXPECT_NE(fault("[pool]\nnonsense\n").find("interlock.ini:2: expected"), std::string::npos);
    EXPECT_NE(fault("[pool\n").find("interlock.ini:1: a section is written [name]"),
              std::string::npos);
}

TEST(Settings, Ranges) {
    EXPECT_EQ(fault("[pool]\nsize = 0\n"),
              "interlock.ini:2: setting \"pool.size\" must be from 1 to 10000, not 0");
    EXPECT_EQ(fault("[catalog]\npoll_interval = 2h\n"),
              "interlock.ini:2: setting \"catalog.poll_interval\" must be from 10ms to 1h, not 2h");
    for (const char *bad : {"size = x", "size = 4 kB", "size = ", "size = 1.5", "size = -1",
                            "size = 99999999999999999999", "idle_check = -1", "idle_check = 5x",
                            "idle_check = 9223372036854775807d"})
        EXPECT_NE(fault(std::string("[pool]\n") + bad + "\n"), "") << bad;
    for (const char *bad : {"max_line = 1mb", "max_line = 9223372036854775807TB"})
        EXPECT_NE(fault(std::string("[line]\n") + bad + "\n"), "") << bad;
    EXPECT_NE(fault("[log]\nlevel = loud\n").find("error, warning, info or debug"),
              std::string::npos);
}

TEST(Settings, QuotesAndTrailingCommentsAreExplained) {
    EXPECT_NE(fault("[pool]\nsize = \"4\"\n").find("without quotes"), std::string::npos);
    EXPECT_NE(fault("[pool]\nsize = 4 # four\n").find("a line of its own"), std::string::npos);
}

TEST(Settings, ListenerAddresses) {
    for (const char *good : {"127.0.0.1:47210", "localhost:1", "[::1]:65535", "0.0.0.0:0"})
        EXPECT_EQ(fault(std::string("[line]\nlisten = ") + good + "\n"), "") << good;
    for (const char *bad : {"47210", ":47210", "h:", "h:65536", "h:-1", "::1:47210", "h:4x"})
        EXPECT_NE(fault(std::string("[line]\nlisten = ") + bad + "\n"), "") << bad;
}

TEST(Settings, EitherListenerMayBeLeftOut) {
    const auto with = [](const char *line, const char *pg) {
        return flag_fault({"--catalog", "dbname=a", "--line-listen", line, "--pg-listen", pg});
    };
    EXPECT_EQ(with("", "127.0.0.1:6432"), "");
    EXPECT_EQ(with("127.0.0.1:1", ""), "");
    EXPECT_NE(with("", "").find("no listener is given"), std::string::npos);
    EXPECT_EQ(Settings{}.pg_listen, "");
}

TEST(Settings, WordsAreListedWhenAnotherIsGiven) {
    for (const char *good : {"disable", "allow", "require"})
        EXPECT_EQ(from_text(std::string("[pg]\ntls = ") + good + "\n").pg_tls, good);
    EXPECT_EQ(
        fault("[pg]\nauth = md5\n"),
        "interlock.ini:2: setting \"pg.auth\" must be scram-sha-256, cert or trust, not \"md5\"");
    for (const char *bad : {"", "scram", "cert|trust", "|", "Trust"})
        EXPECT_NE(fault(std::string("[pg]\nauth = ") + bad + "\n"), "") << bad;
}

TEST(Settings, ConnectionStringsAreChecked) {
    EXPECT_EQ(fault("[catalog]\nconninfo = postgresql://u@h:5432/db\n"), "");
    EXPECT_NE(fault("[catalog]\nconninfo = hots=h\n").find("not a connection string"),
              std::string::npos);
}

TEST(Settings, FlagsAreExactAndExplained) {
    const std::vector<std::string> ok{"--catalog", "dbname=a"};
    const auto with = [&ok](std::vector<std::string> more) {
        more.insert(more.begin(), ok.begin(), ok.end());
        return flag_fault(more);
    };
    EXPECT_EQ(with({}), "");
    EXPECT_EQ(with({"--pool-siz", "3"}),
              "unknown option \"--pool-siz\"\nHINT:  did you mean --pool-size?");
    EXPECT_EQ(with({"--pool-size"}), "option \"--pool-size\" needs a value");
    EXPECT_EQ(with({"--pool-size=0"}), "option \"--pool-size\" must be from 1 to 10000, not 0");
    EXPECT_NE(with({"stray"}).find("unexpected argument \"stray\""), std::string::npos);
    EXPECT_NE(with({"--catalog", "dbname=b"}).find("given twice"), std::string::npos);
    EXPECT_NE(flag_fault({}).find("no catalog is given"), std::string::npos);
    EXPECT_NE(flag_fault({"-c", "/nonexistent/x"}).find("No such file"), std::string::npos);
    EXPECT_NE(flag_fault({"-c", "/"}).find("directory"), std::string::npos);
}

TEST(Settings, ReloadGivesTheNewSettingsOrOneLine) {
    const File file("[catalog]\nconninfo = dbname=a\n");
    const std::vector<std::string> args{"-c", file.path()};
    const Settings running = load_settings(args);
    file.write("[catalog]\nconninfo = dbname=b\n[pool]\nsize = 7\n");
    Settings fresh;
    std::string error;
    ASSERT_TRUE(reload_settings(args, fresh, error)) << error;
    EXPECT_EQ(fresh.pool_size, 7U);
    EXPECT_EQ(restart_needed(running, fresh), std::vector<std::string>{"catalog.conninfo"});
    keep_restart_settings(running, fresh);
    EXPECT_EQ(fresh.catalog_conninfo, "dbname=a");
    EXPECT_EQ(fresh.pool_size, 7U);

    file.write("[pool]\nsizes = 7\n");
    EXPECT_FALSE(reload_settings(args, fresh, error));
    EXPECT_EQ(error.find('\n'), std::string::npos);
    EXPECT_NE(error.find(":2: unknown setting \"pool.sizes\"; HINT: did you mean pool.size?"),
              std::string::npos);
}

TEST(Settings, EverySettingIsInTheHelpAndReadsItsOwnDefault) {
    const std::string help = serve_help();
    std::set<std::string> flags;
    for (const SettingSpec &spec : setting_table()) {
        EXPECT_NE(help.find("--" + spec.flag() + " "), std::string::npos) << spec.name();
        EXPECT_TRUE(flags.insert(spec.flag()).second) << spec.flag();
        EXPECT_FALSE(section_title(spec.section).empty()) << spec.name();
        Settings settings;
        EXPECT_EQ(set_setting(spec, setting_text(spec, Settings{}), settings), "") << spec.name();
        EXPECT_EQ(setting_text(spec, settings), setting_text(spec, Settings{})) << spec.name();
    }
}

TEST(Settings, DurationsPrintAsTheyRead) {
    for (const std::int64_t value : {0LL, 1LL, 999LL, 1000LL, 60000LL, 3600000LL, 86400000LL})
        EXPECT_EQ(parse_duration(format_duration(value)), value);
    EXPECT_EQ(parse_duration("1001us"), 2);
    EXPECT_EQ(parse_duration("-1"), std::nullopt);
}

}  // namespace
}  // namespace interlock
