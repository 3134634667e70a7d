// Records with the C interface into a folder of the test's own, and reads back with the same interface and with
// kvscope-cli.
#pragma once

#include "sdk/trace/kvscope_trace.h"
#include "tests/app/process.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <string>
#include <vector>

namespace kvscope::test {

template <class Struct> Struct sized() {
    Struct empty{};
    empty.size = sizeof empty;
    return empty;
}

inline kvtrace_run_info runOf(unsigned knows, int layers = 2, int kvHeads = 1, int sequences = 1, int blockSize = 16) {
    auto info = sized<kvtrace_run_info>();
    info.knows = knows;
    info.model = "a model";
    info.method = "a-method-of-nobody";
    info.block_size = blockSize;
    info.block_bytes = 4096;
    info.layers = layers;
    info.kv_heads = kvHeads;
    info.sequences = sequences;
    return info;
}

/// Ids [rows][heads][k], one after the other.
inline kvtrace_selection selectionOf(const std::vector<std::int32_t>& ids, const std::vector<std::int64_t>& positions,
                                     int layer, int heads, int unit) {
    auto selection = sized<kvtrace_selection>();
    selection.layer = layer;
    selection.unit = unit;
    selection.ids = ids.data();
    selection.rows = std::int64_t(positions.size());
    selection.heads = heads;
    selection.k = selection.rows == 0 ? 0 : std::int64_t(ids.size()) / (selection.rows * heads);
    selection.row_stride = heads * selection.k;
    selection.head_stride = selection.k;
    selection.id_stride = 1;
    selection.position = positions.data();
    return selection;
}

struct ReadColumn {
    std::vector<std::uint8_t> present;
    std::vector<std::int64_t> ints;
    std::vector<double> reals;
    std::vector<std::string> texts;
    std::vector<std::vector<std::int64_t>> lists;
};

class SdkTest : public ::testing::Test {
protected:
    SdkTest() : folder_(std::filesystem::temp_directory_path() / fmt::format("kvscope-sdk-{}", getpid())) {
        std::filesystem::create_directories(folder_);
    }
    ~SdkTest() override {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }
    std::string path(const std::string& name) const { return (folder_ / name).string(); }

    kvtrace_writer open(const std::string& file, int level = KVTRACE_SELECTIONS) const {
        auto options = sized<kvtrace_options>();
        options.level = level;
        kvtrace_writer writer = 0;
        EXPECT_EQ(kvtrace_open(file.c_str(), &options, &writer), KVTRACE_OK) << kvtrace_last_error();
        return writer;
    }
    static kvtrace_run begin(kvtrace_writer writer, const kvtrace_run_info& info) {
        kvtrace_run run = 0;
        EXPECT_EQ(kvtrace_run_begin(writer, &info, &run), KVTRACE_OK) << kvtrace_last_error();
        return run;
    }
    static kvtrace_step beginStep(kvtrace_run run, int phase = KVTRACE_DECODE, std::int64_t start = KVTRACE_NOW,
                                  int tokens = 1) {
        kvtrace_step step = 0;
        EXPECT_EQ(kvtrace_step_begin(run, phase, tokens, start, &step), KVTRACE_OK) << kvtrace_last_error();
        return step;
    }
    static void select(kvtrace_step step, const kvtrace_selection& selection) {
        EXPECT_EQ(kvtrace_step_select(step, &selection), KVTRACE_OK) << kvtrace_last_error();
    }
    static void finish(kvtrace_writer writer, kvtrace_run run) {
        EXPECT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK) << kvtrace_last_error();
        EXPECT_EQ(kvtrace_close(writer, 30000), KVTRACE_OK) << kvtrace_last_error();
    }

    static std::map<std::string, ReadColumn> read(const std::string& file, const char* name) {
        kvtrace_table table = 0;
        EXPECT_EQ(kvtrace_read(file.c_str(), name, 0, &table), KVTRACE_OK) << kvtrace_last_error();
        std::int32_t count = 0;
        kvtrace_table_columns(table, &count);
        std::map<std::string, ReadColumn> columns;
        for (std::int32_t i = 0; i < count; ++i) {
            auto column = sized<kvtrace_column>();
            EXPECT_EQ(kvtrace_table_column(table, i, &column), KVTRACE_OK) << kvtrace_last_error();
            ReadColumn& read = columns[column.name];
            read.present.assign(column.present, column.present + column.rows);
            for (std::int64_t row = 0; row < column.rows; ++row) {
                if (column.type == KVTRACE_COLUMN_INT) read.ints.push_back(column.ints[row]);
                if (column.type == KVTRACE_COLUMN_REAL) read.reals.push_back(column.reals[row]);
                if (column.type == KVTRACE_COLUMN_TEXT)
                    read.texts.emplace_back(column.text + column.offsets[row], column.text + column.offsets[row + 1]);
                if (column.type == KVTRACE_COLUMN_INT_LIST)
                    read.lists.emplace_back(column.ints + column.offsets[row], column.ints + column.offsets[row + 1]);
            }
        }
        EXPECT_EQ(kvtrace_table_free(table), KVTRACE_OK);
        return columns;
    }

    static Finished cli(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), kCommandLine);
        return Process(arguments).wait();
    }
    /// Expects that the file breaks no rule of the format and that every command that reads traces takes it.
    void expectGood(const std::string& file) const {
        const Finished check = cli({"check", file});
        EXPECT_EQ(check.status, 0) << check.out << check.err;
        EXPECT_THAT(check.out, ::testing::HasSubstr("0 violations; "));
        for (const std::vector<std::string>& command : {std::vector<std::string>{"info", file},
                                                        {"insights", file},
                                                        {"export", file, "--what", "selections", "--format", "csv"},
                                                        {"export", file, "--format", "chrome-trace"},
                                                        {"report", file, "-o", path("report.html")}}) {
            const Finished result = cli(command);
            EXPECT_EQ(result.status, 0) << command[0] << ": " << result.err;
        }
    }

    static void expectStepsOf(const std::string& file, std::size_t steps) {
        EXPECT_EQ(read(file, "steps")["step"].ints.size(), steps);
    }

private:
    const std::filesystem::path folder_;
};

} // namespace kvscope::test
