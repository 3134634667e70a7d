// Folders of one user that go away, also those of programs that were killed.
#include "profiler/read/open_trace.h"
#include "tests/profiler/temporary_folder.h"

#include <chrono>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

class TemporaryFiles : public testing::Test {
protected:
    TemporaryFiles() : before_(getenv("TMPDIR") ? getenv("TMPDIR") : "") {
        setenv("TMPDIR", folder_.path().c_str(), 1);
    }
    ~TemporaryFiles() override {
        if (before_.empty())
            unsetenv("TMPDIR");
        else
            setenv("TMPDIR", before_.c_str(), 1);
    }
    std::size_t folders() const { return std::size_t(std::distance(fs::directory_iterator(folder_.path()), {})); }
    test::Folder folder_;

private:
    std::string before_;
};

TEST_F(TemporaryFiles, AreOfOneUserAndGo) {
    {
        const TemporaryFolder temporary;
        struct stat status {};
        ASSERT_EQ(stat(temporary.path().c_str(), &status), 0);
        EXPECT_EQ(status.st_mode & 0777, 0700u);
    }
    EXPECT_EQ(folders(), 0u);
}

TEST_F(TemporaryFiles, OfAKilledProgramGoWithTheNextAndNoOthers) {
    const pid_t child = fork();
    if (child == 0) {
        auto* left = new TemporaryFolder;
        std::ofstream(left->path() + "/trace.kvtrace") << "a copy";
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    ASSERT_EQ(folders(), 1u);
    const fs::path left = *fs::directory_iterator(folder_.path()), own = folder_ / "kvscope-abcdef";
    fs::create_directory(own); // looks like one, but nobody's lock is in it
    const auto old = fs::file_time_type::clock::now() - std::chrono::minutes(5);
    fs::last_write_time(left, old);
    fs::last_write_time(own, old);
    const TemporaryFolder living;
    fs::last_write_time(living.path(), old);
    const TemporaryFolder next;
    EXPECT_FALSE(fs::exists(left));
    EXPECT_TRUE(fs::exists(own));
    EXPECT_TRUE(fs::exists(living.path())) << "its lock is held";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
