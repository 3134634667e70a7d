#include "app/terminal/options.h"

#include "app/terminal/output.h"

#include <CLI/CLI.hpp>
#include <sstream>
#include <utility>

namespace kvscope {

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
    option_->check(CLI::NonNegativeNumber);
    return *this;
}

Option Option::positive() {
    option_->check(CLI::PositiveNumber);
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
    option->check([](const std::string& text) { // read as a number of 64 bits, -1 would be the largest one
        return text.find('-') == std::string::npos ? std::string() : text + " is negative: write 0 or a larger number";
    });
    return Option(option);
}
Option Options::add(const std::string& names, float& target, const std::string& help) {
    return Option(app_->add_option(names, target, help));
}
Option Options::add(const std::string& names, double& target, const std::string& help) {
    return Option(app_->add_option(names, target, help));
}
Option Options::add(const std::string& names, std::vector<std::string>& target, const std::string& help) {
    return Option(app_->add_option(names, target, help));
}
Option Options::add(const std::string& names, std::vector<int>& target, const std::string& help) {
    return Option(app_->add_option(names, target, help));
}
Option Options::add(const std::string& names, std::vector<double>& target, const std::string& help) {
    return Option(app_->add_option(names, target, help));
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
        const std::string program = owned_->get_name();
        printErr("{}: {}; see {} --help\n", program, error.what(), program);
        return 2;
    }
    return std::nullopt;
}

} // namespace kvscope
