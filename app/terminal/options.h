// The command line of a program: its subcommands and options, declared where they are used and read by CLI11. No file
// but options.cpp includes CLI11, which costs several seconds in each that does.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
} // namespace CLI

namespace kvscope {

/// One option, flag or positional argument that was declared. A copy stands for the same one. It lives as long as the
/// CommandLine. Every rule returns the option, so that rules can be written one behind the other; a command line that
/// breaks one is refused by CommandLine::parse.
class Option {
public:
    /// The command cannot do without it.
    Option required();
    /// A value from `lowest` to `highest`, both included; --help says so.
    Option range(int lowest, int highest);
    Option range(double lowest, double highest);
    /// A number, 0 or larger.
    Option notNegative();
    /// A number larger than 0.
    Option positive();
    /// One of these words.
    Option oneOf(std::initializer_list<const char*> words);
    /// The target's present value is the default, and --help shows it.
    Option showsDefault();
    /// One argument can hold several values with commas between them. An empty one ("16,,24") is refused.
    Option commaSeparated();
    /// The option can stand without a value, which then is `value`.
    Option valueOptional(const std::string& value);
    /// The option may be given several times, and every value is kept.
    Option repeatable();
    /// Given only together with the other one.
    Option needs(const Option& other);
    /// Never given together with the other one.
    Option excludes(const Option& other);
    /// The name that --help gives the option's value, for example FILE.
    Option valueName(const std::string& name);

    /// Whether the command line had it.
    bool given() const;

private:
    friend class Options;
    explicit Option(CLI::Option* option) : option_(option) {}
    CLI::Option* option_;
};

/// The options of a program or of one of its subcommands. A copy stands for the same ones.
///
/// The names of an option are written "--run", "-o,--out" with a short form, or "trace" for an argument that is known
/// by its place. What the command line gives is stored in the target, which must live until CommandLine::parse has
/// returned; without it the target stays as it is. A vector takes every value that is given. A value that is empty, and
/// a number that is infinite or NaN, is refused.
class Options {
public:
    Option add(const std::string& names, std::string& target, const std::string& help);
    Option add(const std::string& names, int& target, const std::string& help);
    Option add(const std::string& names, std::int64_t& target, const std::string& help);
    Option add(const std::string& names, std::uint64_t& target, const std::string& help);
    Option add(const std::string& names, float& target, const std::string& help);
    Option add(const std::string& names, double& target, const std::string& help);
    Option add(const std::string& names, std::vector<std::string>& target, const std::string& help);
    Option add(const std::string& names, std::vector<int>& target, const std::string& help);
    Option add(const std::string& names, std::vector<double>& target, const std::string& help);
    /// Adds an option whose value is a text that a person wrote. Other than with add(), the text may be empty.
    Option addWords(const std::string& names, std::string& target, const std::string& help);
    Option addWords(const std::string& names, std::vector<std::string>& target, const std::string& help);

    /// An option without a value: true when it is given.
    Option flag(const std::string& names, bool& target, const std::string& help);
    /// "--check{3}": 3 when it stands alone, 5 with --check=5.
    Option flag(const std::string& names, int& target, const std::string& help);
    /// Calls `given` while the command line is read.
    Option flag(const std::string& names, std::function<void()> given, const std::string& help);

    /// With this option, the command refuses all options that were declared before, except these.
    void excludeAllBut(const Option& option, std::initializer_list<const char*> these);

    /// A subcommand with options of its own.
    Options command(const std::string& name, const std::string& help);
    /// Stores every argument behind the subcommand's name here, --help too, and does not interpret it.
    void handOn(std::vector<std::string>& target);

    /// The subcommands in the order in which they were declared.
    std::vector<Options> commands() const;
    /// Whether the command line chose this subcommand.
    bool chosen() const;
    /// Whether the option or flag of this name was declared and the command line had it.
    bool has(const std::string& name) const;

protected:
    explicit Options(CLI::App* app) : app_(app) {}
    CLI::App* app_;
};

/// A program's whole command line. Where an option or a command does not exist, the message names the one that is
/// written most like it.
class CommandLine final : public Options {
public:
    CommandLine(const std::string& program, const std::string& help, const std::string& version);
    CommandLine(const CommandLine&) = delete;
    CommandLine& operator=(const CommandLine&) = delete;
    ~CommandLine();

    /// One subcommand must be given.
    void requireCommand();
    /// Reads the arguments into the targets. @return nothing when the program is to go on; else its exit status, after
    /// help or version was printed (0), or what is wrong with the command line (2)
    std::optional<int> parse(int argc, char** argv);

private:
    explicit CommandLine(std::unique_ptr<CLI::App> app);
    std::unique_ptr<CLI::App> owned_;
};

} // namespace kvscope
