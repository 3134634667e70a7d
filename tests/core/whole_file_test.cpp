// Files that appear when they are complete: under names nobody can guess, and nothing is left of a killed program.
#include "base/whole_file.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

class WholeFileTest : public testing::Test {
protected:
    WholeFileTest() {
        std::string name = (fs::temp_directory_path() / "kvscope-whole-XXXXXX").string();
        folder = mkdtemp(name.data());
    }
    ~WholeFileTest() override { fs::remove_all(folder); }
    std::string path(const char* name) const { return (folder / name).string(); }
    std::size_t files() const { return std::size_t(std::distance(fs::directory_iterator(folder), {})); }
    /// A process that makes a file aside and tells its name. It waits to be killed.
    struct Writer {
        pid_t id = -1;
        std::string aside;
    };
    Writer start() const {
        std::array<int, 2> ends{};
        EXPECT_EQ(pipe(ends.data()), 0);
        Writer writer;
        writer.id = fork();
        if (writer.id == 0) {
            const WholeFile whole(path("out.txt"));
            (void)!write(ends[1], whole.aside().data(), whole.aside().size());
            close(ends[1]);
            pause();
            _exit(0);
        }
        close(ends[1]);
        std::array<char, 4096> buffer{};
        for (ssize_t got; (got = read(ends[0], buffer.data(), buffer.size())) > 0;)
            writer.aside.append(buffer.data(), std::size_t(got));
        close(ends[0]);
        fs::last_write_time(writer.aside, fs::file_time_type::clock::now() - std::chrono::hours(1));
        return writer;
    }
    static void end(const Writer& writer) {
        kill(writer.id, SIGKILL);
        waitpid(writer.id, nullptr, 0);
    }
    /// Another program writes a file in the same folder.
    void writeElsewhere() const {
        const pid_t child = fork();
        if (child == 0) {
            const std::string failure = writeWholeFile(path("other.txt"), [](std::ostream& out) { out << "text"; });
            _exit(failure.empty() ? 0 : 1);
        }
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
    }
    fs::path folder;
};

TEST_F(WholeFileTest, GoesIntoAPipeAndLeavesItOne) {
    ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
    const int reader = open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
    ASSERT_GE(reader, 0);
    EXPECT_EQ(writeWholeFile(path("pipe"), [](std::ostream& out) { out << "text"; }), "");
    std::array<char, 16> got{};
    EXPECT_EQ(read(reader, got.data(), got.size()), 4);
    EXPECT_STREQ(got.data(), "text");
    close(reader);
    EXPECT_TRUE(fs::is_fifo(path("pipe")));
    WholeFile whole(path("pipe"));
    EXPECT_EQ(whole.appear(), "it is not a regular file");
    EXPECT_TRUE(fs::is_fifo(path("pipe")));
}

TEST_F(WholeFileTest, WaitsForThePipesReaderButNotForEver) {
    ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
    const auto text = [](std::ostream& out) { out << "text"; };
    EXPECT_EQ(writeWholeFile(path("pipe"), text), "it is a pipe from which no program reads");
    std::string got;
    std::thread reader([&] { // opens the pipe at any time before or after the writer
        std::ifstream in(path("pipe"));
        std::getline(in, got);
    });
    EXPECT_EQ(writeWholeFile(path("pipe"), text), "");
    reader.join();
    EXPECT_EQ(got, "text");
}

TEST_F(WholeFileTest, SaysThatADeviceIsFull) {
    EXPECT_NE(writeWholeFile(path("missing") + "/x", [](std::ostream& out) { out << "text"; }), "");
    if (fs::is_character_file("/dev/full")) {
        fs::create_symlink("/dev/full", path("full"));
        EXPECT_EQ(writeWholeFile(path("full"), [](std::ostream& out) { out << "text"; }), std::strerror(ENOSPC));
        EXPECT_TRUE(fs::is_symlink(path("full")));
    }
}

TEST_F(WholeFileTest, SaysThatAFileMayNotBecomeSoLarge) {
    struct rlimit before {};
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto signal = std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small { 4096, before.rlim_max };
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    const std::string failure = writeWholeFile(path("large"), [](std::ostream& out) {
        for (int i = 0; i < 100000; ++i) out << "text";
        errno = ENOENT; // of something else
    });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, signal);
    EXPECT_EQ(failure, std::strerror(EFBIG));
    EXPECT_EQ(files(), 0u);
}

TEST_F(WholeFileTest, GoesWhereALinkLeads) {
    fs::create_directory(folder / "there");
    std::ofstream(folder / "there" / "file.txt") << "before";
    fs::create_symlink("there/file.txt", path("link.txt"));
    EXPECT_EQ(writeWholeFile(path("link.txt"), [](std::ostream& out) { out << "after"; }), "");
    EXPECT_TRUE(fs::is_symlink(path("link.txt")));
    std::string text;
    std::ifstream(folder / "there" / "file.txt") >> text;
    EXPECT_EQ(text, "after");
    EXPECT_EQ(files(), 2u) << "nothing else is left";
}

TEST_F(WholeFileTest, HasAnotherNameEachTimeThatIsThereAtOnce) {
    const WholeFile one(path("out.txt")), two(path("out.txt"));
    EXPECT_NE(one.aside(), two.aside());
    for (const WholeFile* whole : {&one, &two}) {
        const std::size_t mark = whole->aside().find(WholeFile::kMark);
        ASSERT_NE(mark, std::string::npos);
        const std::string end = whole->aside().substr(mark + std::string(WholeFile::kMark).size());
        EXPECT_EQ(end.size(), 16u);
        EXPECT_EQ(end.find_first_not_of("0123456789abcdef"), std::string::npos) << end;
        EXPECT_EQ(end.find(std::to_string(getpid()) + "-"), std::string::npos);
        EXPECT_TRUE(fs::is_regular_file(whole->aside())) << "nobody can put a link there";
    }
}

TEST_F(WholeFileTest, AppearsWholeAndLeavesNothingBeside) {
    EXPECT_EQ(writeWholeFile(path("out.txt"), [](std::ostream& out) { out << "text"; }), "");
    EXPECT_EQ(files(), 1u);
    { const WholeFile never(path("out.txt")); }
    EXPECT_EQ(files(), 1u);
    EXPECT_NE(writeWholeFile(path("absent/out.txt"), [](std::ostream& out) { out << "text"; }), "");
}

TEST_F(WholeFileTest, TakesThePlaceOfNoDatabase) {
    const auto write = [&](const char* name) {
        return writeWholeFile(path(name), [](std::ostream& out) { out << "text"; });
    };
    std::ofstream(path("run.kvtrace")) << std::string("SQLite format 3\0 and pages", 27);
    EXPECT_EQ(write("run.kvtrace"), "a database, perhaps a trace, would be lost");
    EXPECT_EQ(fs::file_size(path("run.kvtrace")), 27u);
    std::ofstream(path("short.txt")) << "SQLite";
    EXPECT_EQ(write("short.txt"), "");
    EXPECT_EQ(databaseInTheWay(path("absent")), "");
    EXPECT_EQ(databaseInTheWay(path("")), "") << "a folder";
}

TEST_F(WholeFileTest, RemovesWhatAKilledProgramLeftAndNothingOfALivingOne) {
    const Writer killed = start(), living = start();
    std::ofstream(killed.aside + "-wal") << "of SQLite";
    std::ofstream(path("out.txt.writing-history")) << "a person's";
    end(killed);
    writeElsewhere();
    EXPECT_FALSE(fs::exists(killed.aside));
    EXPECT_FALSE(fs::exists(killed.aside + "-wal"));
    EXPECT_TRUE(fs::exists(living.aside));
    EXPECT_TRUE(fs::exists(path("out.txt.writing-history")));
    end(living);
    writeElsewhere();
    EXPECT_FALSE(fs::exists(living.aside));
}

TEST_F(WholeFileTest, ATrialSaysWhyAFileCannotBeWrittenAndLeavesNothing) {
    EXPECT_EQ(whyUnwritable(path("new.txt")), "");
    EXPECT_EQ(files(), 0u);
    EXPECT_EQ(writeWholeFile(path("old.txt"), [](std::ostream& out) { out << "kept"; }), "");
    EXPECT_EQ(whyUnwritable(path("old.txt")), "");
    EXPECT_EQ(std::ifstream(path("old.txt")).get(), 'k');
    EXPECT_EQ(whyUnwritable(path("none/new.txt")), "No such file or directory");
    EXPECT_EQ(whyUnwritable(path("old.txt/new.txt")), "Not a directory");
    EXPECT_EQ(whyUnwritable(folder.string()), "Is a directory");
    EXPECT_EQ(whyUnwritable("/dev/null"), "");
    EXPECT_EQ(writeWholeFile(path("trace.db"), [](std::ostream& out) { out << "SQLite format 3"; }), "");
    EXPECT_NE(whyUnwritable(path("trace.db")).find("database"), std::string::npos);
    EXPECT_EQ(files(), 2u);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
