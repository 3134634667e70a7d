// Stands in for libFuzzer where there is none: every file of the corpus, as it is and with reproducible changes, round
// after round until so many are done or the time is up. Usage: TARGET [-rounds=N] [-seconds=S] FOLDER_OR_FILE...
#include "tests/fuzz/fuzz_target.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

namespace {

using Input = std::vector<std::uint8_t>;

Input read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void run(const Input& input) { LLVMFuzzerTestOneInput(input.data(), input.size()); }

/// Flips bits, overwrites with telling numbers, cuts, repeats, and puts in parts of another file.
Input changed(Input input, const Input& other, std::mt19937& random) {
    for (unsigned change = 0, changes = 1 + random() % 4; change < changes && !input.empty(); ++change) {
        const std::size_t at = random() % input.size();
        switch (random() % 6) {
        case 0:
            input[at] ^= std::uint8_t(1u << random() % 8);
            break;
        case 1:
            input[at] = std::uint8_t(random());
            break;
        case 2: {
            constexpr std::uint64_t telling[] = {0, 1, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
            const std::uint64_t value = telling[random() % std::size(telling)];
            std::memcpy(&input[at], &value, std::min<std::size_t>(random() % 2 ? 4 : 8, input.size() - at));
            break;
        }
        case 3:
            input.resize(at);
            break;
        case 4: {
            if (other.empty()) break;
            const auto from = other.begin() + std::ptrdiff_t(random() % other.size());
            const auto most = std::min<std::size_t>(std::size_t(other.end() - from), 1 + random() % 200);
            input.insert(input.begin() + std::ptrdiff_t(at), from, from + std::ptrdiff_t(most));
            break;
        }
        default: {
            const Input part(input.begin() + std::ptrdiff_t(at),
                             input.begin() + std::ptrdiff_t(std::min(input.size(), at + 1 + random() % 16)));
            input.insert(input.begin() + std::ptrdiff_t(random() % input.size()), part.begin(), part.end());
        }
        }
    }
    return input;
}

} // namespace

int main(int argc, char** argv) {
    unsigned rounds = 200, seconds = 3600;
    std::vector<std::filesystem::path> files;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (argument.starts_with("-rounds=")) {
            rounds = unsigned(std::atoi(argument.c_str() + 8));
        } else if (argument.starts_with("-seconds=")) {
            seconds = unsigned(std::atoi(argument.c_str() + 9));
        } else if (std::filesystem::is_directory(argument)) {
            for (const auto& entry : std::filesystem::directory_iterator(argument)) files.push_back(entry.path());
        } else {
            files.emplace_back(argument);
        }
    }
    if (files.empty()) {
        std::fprintf(stderr, "no corpus: give a folder\n");
        return 1;
    }
    std::sort(files.begin(), files.end()); // a folder's own order differs from machine to machine
    std::vector<Input> corpus;
    for (const auto& file : files) run(corpus.emplace_back(read(file)));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    std::size_t inputs = 0;
    for (unsigned round = 0; round < rounds && std::chrono::steady_clock::now() < end; ++round)
        for (std::size_t i = 0; i < corpus.size(); ++i, ++inputs) {
            std::mt19937 random(unsigned(round * corpus.size() + i));
            const Input& other = corpus[random() % corpus.size()];
            run(changed(corpus[i], other, random));
        }
    std::printf("%zu files, %zu changed inputs\n", corpus.size(), inputs);
}
