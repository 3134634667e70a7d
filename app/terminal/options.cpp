#include "app/terminal/options.h"

#include "app/terminal/output.h"
#include "base/nearest_name.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <fmt/format.h>
#include <limits>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvscope {

namespace {

/// Why a value that must not be empty is refused: an empty file name, for example, would count as one that is left out.
std::string whyEmpty(const std::string& text) { return text.empty() ? "the value is empty" : ""; }

/// What the library says of a text that is not a number names neither what is wrong nor what would be right. NaN is
/// within every range.
template <std::floating_point Number> std::string whyNoNumber(const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != 0) return text + " is not a number";
    if (!std::isfinite(value)) return text + " is not a finite number";
    return std::abs(value) > double(std::numeric_limits<Number>::max()) ? text + " is too large" : "";
}

enum class Whole : std::uint8_t { Yes, NoNumber, TooSmall, TooLarge };

/// Reads a whole number: decimal, whatever zeros it begins with, or hexadecimal behind 0x.
template <std::integral Number> Whole readWhole(std::string_view text, Number& number) {
    using Limits = std::numeric_limits<Number>;
    const bool negative = text.substr(0, 1) == "-";
    if (negative || text.substr(0, 1) == "+") text.remove_prefix(1);
    const bool hexadecimal = text.substr(0, 2) == "0x" || text.substr(0, 2) == "0X";
    if (hexadecimal) text.remove_prefix(2);
    std::uint64_t size = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data(), end, size, hexadecimal ? 16 : 10);
    if (code == std::errc::invalid_argument || stop != end) return Whole::NoNumber;
    const std::uint64_t most =
        negative ? std::uint64_t(0) - std::uint64_t(Limits::min()) : std::uint64_t(Limits::max());
    if (code == std::errc::result_out_of_range || size > most) return negative ? Whole::TooSmall : Whole::TooLarge;
    number = Number(negative ? std::uint64_t(0) - size : size);
    return Whole::Yes;
}

template <std::integral Number> std::string whyNoNumber(const std::string& text) {
    using Limits = std::numeric_limits<Number>;
    Number number = 0;
    switch (readWhole(text, number)) {
    case Whole::Yes:
        return {};
    case Whole::NoNumber:
        return text + " is not a whole number";
    case Whole::TooLarge:
        return fmt::format("{} is too large: the largest is {}", text, Limits::max());
    case Whole::TooSmall:
        break;
    }
    if (Limits::min() == 0) return text + " is negative: write 0 or a larger number";
    return fmt::format("{} is too small: the smallest is {}", text, Limits::min());
}

/// The library takes a number that begins with 0 for an octal one: 010 for 8.
std::string withoutZeros(const std::string& text) {
    const std::size_t sign = text.find_first_not_of("+-") == 1 ? 1 : 0, first = text.find_first_not_of('0', sign);
    const bool decimal = first != std::string::npos && text[first] >= '0' && text[first] <= '9';
    return decimal && first > sign ? text.substr(0, sign) + text.substr(first) : text;
}

template <class Number> CLI::Option* asNumber(CLI::Option* option) {
    if (std::is_integral_v<Number>) option->transform(withoutZeros);
    return option->check(whyNoNumber<Number>);
}

/// In place of the library's own, which takes numbers as it reads them and says 86400.000000. It comes before the other
/// checks, because it says most.
template <class Number> CLI::Validator within(Number lowest, Number highest) {
    std::ostringstream described;
    described << CLI::detail::type_name<Number>() << " in [" << lowest << " - " << highest << "]";
    return {[lowest, highest](const std::string& text) {
                bool inside = false;
                if constexpr (std::is_integral_v<Number>) {
                    std::int64_t value = 0;
                    const Whole read = readWhole(text, value);
                    if (read == Whole::NoNumber)
                        return fmt::format("{} is not a whole number from {} to {}", text, lowest, highest);
                    inside = read == Whole::Yes && value >= lowest && value <= highest;
                } else {
                    const double value = std::strtod(text.c_str(), nullptr);
                    inside = !whyNoNumber<double>(text).empty() || (value >= lowest && value <= highest);
                }
                return inside ? std::string() : fmt::format("{} is not in the range {} to {}", text, lowest, highest);
            },
            described.str()};
}

/// whyNegative and whyNotPositive stand in for CLI11's own checks, whose messages name the largest number there is with
/// all of its 309 digits. A text that is not a number is refused when it is read.
std::string whyNegative(const std::string& text) {
    return std::strtod(text.c_str(), nullptr) < 0 ? text + " is negative: write 0 or a larger number" : "";
}
std::string whyNotPositive(const std::string& text) {
    char* end = nullptr;
    const bool number = (std::strtod(text.c_str(), &end), end != text.c_str());
    return number && !(std::strtod(text.c_str(), nullptr) > 0) ? text + " is not above 0" : "";
}

std::vector<std::string> optionNames(const CLI::App& command) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command.get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
}

std::vector<std::string> commandNames(const CLI::App& program) {
    std::vector<std::string> names;
    for (const CLI::App* command : program.get_subcommands({})) names.push_back(command->get_name());
    return names;
}

/// What is wrong with arguments that nothing takes. An option's value stands behind it, and is not named.
std::string unexpected(const std::vector<std::string>& arguments, const CLI::App& command) {
    for (const std::string& argument : arguments)
        if (argument.size() > 1 && argument.front() == '-') {
            const std::string name = argument.substr(0, argument.find('='));
            return "there is no option " + name + didYouMean(name, optionNames(command));
        }
    return "there is no place for the argument '" + (arguments.empty() ? "" : arguments.front()) + "'";
}

/// What is wrong with a list such as "16,,24", whose empty value CLI11 would skip; nothing where no list has one.
std::string whyEmptyInList(const CLI::App& program, const std::vector<std::string>& arguments) {
    const CLI::App* command = &program;
    const CLI::Option* option = nullptr; // the last one that was named
    for (const std::string& argument : arguments) {
        std::string values = argument;
        if (command == &program) {
            const auto chosen = program.get_subcommands([&](const CLI::App* c) { return c->check_name(argument); });
            if (!chosen.empty()) command = chosen.front();
        }
        if (argument.size() > 1 && argument.front() == '-') {
            const std::size_t equals = argument.find('=');
            if (const CLI::Option* named = command->get_option_no_throw(argument.substr(0, equals))) {
                option = named;
                values = equals == std::string::npos ? "" : argument.substr(equals + 1);
            }
        }
        if (option == nullptr || option->get_delimiter() != ',' || values.find(',') == std::string::npos) continue;
        if (values.front() == ',' || values.back() == ',' || values.find(",,") != std::string::npos)
            return fmt::format("{} has an empty value in the list '{}'", option->get_name(), values);
    }
    return {};
}

} // namespace

Option Option::required() {
    option_->required();
    return *this;
}

Option Option::range(int lowest, int highest) {
    option_->transform(within(lowest, highest));
    return *this;
}

Option Option::range(double lowest, double highest) {
    option_->transform(within(lowest, highest));
    return *this;
}

Option Option::notNegative() {
    option_->check(CLI::Validator(whyNegative, "NONNEGATIVE"));
    return *this;
}

Option Option::positive() {
    option_->check(CLI::Validator(whyNotPositive, "POSITIVE"));
    return *this;
}

Option Option::oneOf(std::initializer_list<const char*> words) {
    option_->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end())));
    return *this;
}

Option Option::showsDefault() {
    option_->capture_default_str();
    return *this;
}

Option Option::commaSeparated() {
    option_->delimiter(',');
    return *this;
}

Option Option::valueOptional(const std::string& value) {
    option_->expected(0, 1)->default_str(value);
    return *this;
}

Option Option::repeatable() {
    option_->take_all();
    return *this;
}

Option Option::needs(const Option& other) {
    option_->needs(other.option_);
    return *this;
}

Option Option::excludes(const Option& other) {
    option_->excludes(other.option_);
    return *this;
}

Option Option::valueName(const std::string& name) {
    option_->type_name(name);
    return *this;
}

bool Option::given() const { return option_->count() > 0; }

Option Options::add(const std::string& names, std::string& target, const std::string& help) {
    return Option(app_->add_option(names, target, help)->check(whyEmpty));
}
Option Options::addWords(const std::string& names, std::string& target, const std::string& help) {
    return Option(app_->add_option(names, target, help));
}
Option Options::addWords(const std::string& names, std::vector<std::string>& target, const std::string& help) {
    return Option(app_->add_option(names, target, help));
}
Option Options::add(const std::string& names, int& target, const std::string& help) {
    return Option(asNumber<int>(app_->add_option(names, target, help)));
}
Option Options::add(const std::string& names, std::int64_t& target, const std::string& help) {
    return Option(asNumber<std::int64_t>(app_->add_option(names, target, help)));
}
Option Options::add(const std::string& names, std::uint64_t& target, const std::string& help) {
    return Option(asNumber<std::uint64_t>(app_->add_option(names, target, help)));
}
Option Options::add(const std::string& names, float& target, const std::string& help) {
    return Option(asNumber<float>(app_->add_option(names, target, help)));
}
Option Options::add(const std::string& names, double& target, const std::string& help) {
    return Option(asNumber<double>(app_->add_option(names, target, help)));
}
Option Options::add(const std::string& names, std::vector<std::string>& target, const std::string& help) {
    return Option(app_->add_option(names, target, help)->check(whyEmpty));
}
Option Options::add(const std::string& names, std::vector<int>& target, const std::string& help) {
    return Option(asNumber<int>(app_->add_option(names, target, help)));
}
Option Options::add(const std::string& names, std::vector<double>& target, const std::string& help) {
    return Option(asNumber<double>(app_->add_option(names, target, help)));
}

Option Options::flag(const std::string& names, bool& target, const std::string& help) {
    return Option(app_->add_flag(names, target, help));
}
Option Options::flag(const std::string& names, int& target, const std::string& help) {
    return Option(asNumber<int>(app_->add_flag(names, target, help)));
}
Option Options::flag(const std::string& names, std::function<void()> given, const std::string& help) {
    return Option(app_->add_flag_callback(names, std::move(given), help));
}

void Options::excludeAllBut(const Option& option, std::initializer_list<const char*> these) {
    for (CLI::Option* other : app_->get_options()) {
        const bool taken =
            std::any_of(these.begin(), these.end(), [other](const char* name) { return other->check_name(name); });
        if (!taken && other != option.option_ && other != app_->get_help_ptr()) option.option_->excludes(other);
    }
}

Options Options::command(const std::string& name, const std::string& help) {
    return Options(app_->add_subcommand(name, help));
}

void Options::handOn(std::vector<std::string>& target) {
    app_->set_help_flag();
    app_->prefix_command();
    app_->parse_complete_callback([app = app_, &target] { target = app->remaining(); });
}

std::vector<Options> Options::commands() const {
    std::vector<Options> found;
    for (CLI::App* command : app_->get_subcommands({})) found.push_back(Options(command));
    return found;
}

bool Options::chosen() const { return app_->parsed(); }

bool Options::has(const std::string& name) const {
    const CLI::Option* option = app_->get_option_no_throw(name);
    return option != nullptr && option->count() > 0;
}

CommandLine::CommandLine(const std::string& program, const std::string& help, const std::string& version)
    : CommandLine(std::make_unique<CLI::App>(help, program)) {
    owned_->set_version_flag("--version", version);
}

CommandLine::CommandLine(std::unique_ptr<CLI::App> app) : Options(app.get()), owned_(std::move(app)) {}

CommandLine::~CommandLine() = default;

void CommandLine::requireCommand() { owned_->require_subcommand(1); }

std::optional<int> CommandLine::parse(int argc, char** argv) {
    if (const std::string what = whyEmptyInList(*owned_, std::vector<std::string>(argv + 1, argv + argc));
        !what.empty()) {
        printErr("{}: {}; leave out the comma that has no value beside it\n", owned_->get_name(), what);
        return 2;
    }
    try {
        owned_->parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) { // --help, --version
            std::ostringstream text;
            const int status = owned_->exit(error, text, text);
            writeOut(text.str());
            return status;
        }
        std::string program = owned_->get_name();
        for (const CLI::App* command : owned_->get_subcommands()) program += " " + command->get_name();
        std::string what = error.what();
        if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
            what = unexpected(owned_->remaining(true),
                              owned_->get_subcommands().empty() ? *owned_ : *owned_->get_subcommands().back());
        if (owned_->get_subcommands().empty() && owned_->get_require_subcommand_min() > 0 && argc > 1 &&
            *argv[1] != '-')
            what = fmt::format("there is no command {}{}", argv[1], didYouMean(argv[1], commandNames(*owned_)));
        if (const std::size_t twice = what.find(": At Most 1 required but received"); twice != std::string::npos)
            what = what.substr(0, twice) + " is given more than once";
        printErr("{}: {}; see {} --help\n", owned_->get_name(), what, program);
        // An option that has no effect beside another one ends the program with status 1, here as where the command
        // itself refuses it.
        const bool vain = dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr ||
                          dynamic_cast<const CLI::RequiresError*>(&error) != nullptr;
        return vain ? 1 : 2;
    }
    return std::nullopt;
}

} // namespace kvscope
