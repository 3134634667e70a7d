#include "app/terminal/options.h"

#include "app/terminal/output.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fmt/format.h>
#include <sstream>
#include <utility>

namespace kvscope {

namespace {

/// An empty file name would count as one that is left out.
std::string whyEmpty(const std::string& text) { return text.empty() ? "the value is empty" : ""; }

/// NaN is within every range.
std::string whyNotFinite(const std::string& text) {
    return std::isfinite(std::strtod(text.c_str(), nullptr)) ? "" : text + " is no finite number";
}

/// These two in place of the library's own, which name the largest number there is with all of its 309 digits. What is
/// no number is refused when it is read.
std::string whyNegative(const std::string& text) {
    return std::strtod(text.c_str(), nullptr) < 0 ? text + " is negative: write 0 or a larger number" : "";
}
std::string whyNotPositive(const std::string& text) {
    char* end = nullptr;
    const bool number = (std::strtod(text.c_str(), &end), end != text.c_str());
    return number && !(std::strtod(text.c_str(), nullptr) > 0) ? text + " is not above 0" : "";
}

/// What is wrong with arguments that nothing takes. An option's value stands behind it, and is not named.
std::string unexpected(const std::vector<std::string>& arguments) {
    for (const std::string& argument : arguments)
        if (argument.size() > 1 && argument.front() == '-')
            return "there is no option " + argument.substr(0, argument.find('='));
    return "there is no place for the argument '" + (arguments.empty() ? "" : arguments.front()) + "'";
}

} // namespace

Option Option::required() {
    option_->required();
    return *this;
}

Option Option::range(int lowest, int highest) {
    option_->check(CLI::Range(lowest, highest));
    return *this;
}

Option Option::range(double lowest, double highest) {
    option_->check(CLI::Range(lowest, highest));
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
    return Option(app_->add_option(names, target, help));
}
Option Options::add(const std::string& names, std::int64_t& target, const std::string& help) {
    return Option(app_->add_option(names, target, help));
}
Option Options::add(const std::string& names, std::uint64_t& target, const std::string& help) {
    CLI::Option* option = app_->add_option(names, target, help);
    option->check([](const std::string& text) { // read as an unsigned number of 64 bits, -1 would be the largest one
        if (text.find('-') != std::string::npos) return text + " is negative: write 0 or a larger number";
        std::uint64_t number = 0; // a larger one would silently be taken for the largest
        return std::from_chars(text.data(), text.data() + text.size(), number).ec == std::errc::result_out_of_range
                   ? fmt::format("{} is too large: the largest is {}", text, UINT64_MAX)
                   : std::string();
    });
    return Option(option);
}
Option Options::add(const std::string& names, float& target, const std::string& help) {
    return Option(app_->add_option(names, target, help)->check(whyNotFinite));
}
Option Options::add(const std::string& names, double& target, const std::string& help) {
    return Option(app_->add_option(names, target, help)->check(whyNotFinite));
}
Option Options::add(const std::string& names, std::vector<std::string>& target, const std::string& help) {
    return Option(app_->add_option(names, target, help)->check(whyEmpty));
}
Option Options::add(const std::string& names, std::vector<int>& target, const std::string& help) {
    return Option(app_->add_option(names, target, help));
}
Option Options::add(const std::string& names, std::vector<double>& target, const std::string& help) {
    return Option(app_->add_option(names, target, help)->check(whyNotFinite));
}

Option Options::flag(const std::string& names, bool& target, const std::string& help) {
    return Option(app_->add_flag(names, target, help));
}
Option Options::flag(const std::string& names, int& target, const std::string& help) {
    return Option(app_->add_flag(names, target, help));
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
        if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) what = unexpected(owned_->remaining(true));
        if (owned_->get_subcommands().empty() && owned_->get_require_subcommand_min() > 0 && argc > 1 &&
            *argv[1] != '-')
            what = fmt::format("there is no command {}", argv[1]);
        if (const std::size_t twice = what.find(": At Most 1 required but received"); twice != std::string::npos)
            what = what.substr(0, twice) + " is given more than once";
        printErr("{}: {}; see {} --help\n", owned_->get_name(), what, program);
        return 2;
    }
    return std::nullopt;
}

} // namespace kvscope
