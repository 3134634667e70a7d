#include "profiler/import/trace_event.h"

#include "base/error.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>
#include <istream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

constexpr int kDeepestDocument = 512; // most nested brackets: real traces have far fewer, hostile files may have more
constexpr std::size_t kMostNumbers = 64;

bool isDigit(char c) { return c >= '0' && c <= '9'; }

std::optional<double> numberOf(std::string_view text) {
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
    return value;
}

/// A JSON value that is neither an object nor an array.
struct Scalar {
    enum class Type { Text, Number, Other } type = Type::Other;
    std::string_view text; // as in the file, but without the quotes of a text
    double number = 0;
    bool truth = false;
};

/// The callbacks of nlohmann's SAX parser.
class EventParser {
public:
    using Json = nlohmann::json;
    EventParser(const std::istream& in, const std::string& path, const std::function<void(const TraceEvent&)>& take)
        : in_(in), path_(path), take_(take) {}

    bool null() { return scalar({Scalar::Type::Other, "null", 0, false}); }
    bool boolean(bool value) { return scalar({Scalar::Type::Other, value ? "true" : "false", 0, value}); }
    bool number_integer(std::int64_t value) { return integer(value); }
    bool number_unsigned(std::uint64_t value) { return integer(value); }
    bool number_float(double value, const std::string& digits) {
        return scalar({Scalar::Type::Number, digits, value, value != 0});
    }
    bool string(std::string& value) { return scalar({Scalar::Type::Text, value, 0, false}); }
    bool binary(Json::binary_t&) { return true; }
    bool start_object(std::size_t) {
        if (depth_ == 0) objectForm_ = true;
        if (eventDepth_ > 0 && depth_ == eventDepth_ && field_ == "args") {
            inArgs_ = true;
            event_.args.clear();
        }
        if (inArgs_) event_.args.open('{');
        enter();
        if (depth_ == eventDepth_) {
            event_.clear();
            field_.clear();
        }
        return true;
    }
    bool end_object() {
        if (depth_ == eventDepth_) take_(event_);
        if (inArgs_) {
            event_.args.close('}');
            inArgs_ = depth_ > eventDepth_ + 1;
        }
        return leave();
    }
    bool start_array(std::size_t) {
        const bool events = eventDepth_ == 0 && (depth_ == 0 || (depth_ == 1 && objectForm_ && key_ == "traceEvents"));
        if (events) {
            eventDepth_ = depth_ + 2;
            file_.sawEvents = true;
        }
        if (inArgs_) event_.args.open('[');
        enter();
        return true;
    }
    bool end_array() {
        if (inArgs_) event_.args.close(']');
        if (eventDepth_ > 0 && depth_ == eventDepth_ - 1) eventDepth_ = 0; // the list ends; another may follow
        return leave();
    }
    bool key(std::string& name) {
        if (depth_ == 1)
            key_ = name;
        else if (depth_ == eventDepth_)
            field_ = name, inner_.clear();
        else if (depth_ == eventDepth_ + 1 || (eventDepth_ == 0 && depth_ == 2))
            inner_ = name;
        if (inArgs_) event_.args.key(name);
        return true;
    }
    bool parse_error(std::size_t position, const std::string& token, const Json::exception& error) {
        // A bare list may break off between two events, or end with a bracket after a comma.
        const bool between = !objectForm_ && eventDepth_ > 0 && depth_ == 1;
        const bool ended = in_.eof();
        if (between && (ended || token.ends_with(']'))) return true;
        const bool isRange = error.id == 406;
        throw Error(ErrorKind::BadInput,
                    isRange ? fmt::format("{} holds a number beyond all bounds at byte {}", path_, position)
                    : ended
                        ? fmt::format("{} is cut short: it ends at byte {} in the middle of an event", path_, position)
                        : fmt::format("{} is not readable as JSON from byte {} on", path_, position),
                    "copy or record it again");
    }

    const TraceEventFile& file() const { return file_; }

private:
    template <class Integer> bool integer(Integer value) {
        char digits[24];
        const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
        return scalar({Scalar::Type::Number, {digits, std::size_t(end - digits)}, double(value), value != 0});
    }
    void enter() {
        if (++depth_ > kDeepestDocument)
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} nests brackets more than {} deep: it is not a trace", path_, kDeepestDocument),
                        "choose a file that a profiler has written");
    }
    bool leave() {
        --depth_;
        return true;
    }
    bool scalar(const Scalar& value) {
        if (eventDepth_ == 0) {
            if (depth_ == 2 && key_ == "otherData" && inner_ == "producer" && value.type == Scalar::Type::Text)
                file_.producer = value.text;
        } else if (depth_ == eventDepth_) {
            eventField(value);
        } else if (depth_ == eventDepth_ + 1) {
            if (innerField(value))
                event_.args.dropKey();
            else if (inArgs_)
                argument(value);
        } else if (inArgs_) {
            argument(value);
        }
        return true;
    }
    void argument(const Scalar& value) {
        if (value.type == Scalar::Type::Text)
            event_.args.string(value.text);
        else
            event_.args.literal(value.text);
    }
    void time(const Scalar& value, std::optional<std::int64_t>& field) {
        field = value.type == Scalar::Type::Other ? std::nullopt : nanosecondsOf(value.text);
        if (!field) event_.badTime = true;
    }
    void eventField(const Scalar& value);
    /// Takes a value inside the event's args or id2. @return whether it went into `step` or `layer`, and so must not be
    /// repeated in `args`
    bool innerField(const Scalar& value);

    const std::istream& in_;
    const std::string& path_;
    const std::function<void(const TraceEvent&)>& take_;
    TraceEventFile file_;
    TraceEvent event_;
    std::string key_, field_, inner_; // last names seen: in the document, in the event, in an object of the event
    int depth_ = 0;
    int eventDepth_ = 0; // value of depth_ inside an event; 0: outside of the list of events
    bool objectForm_ = false;
    bool inArgs_ = false; // inside the object "args" of an event
};

void EventParser::eventField(const Scalar& value) {
    const std::string_view name = field_;
    if (name == "ts") return time(value, event_.timeNs);
    if (name == "dur") return time(value, event_.durationNs);
    if (name == "flow_in") return void(event_.flowIn = value.truth);
    if (name == "flow_out") return void(event_.flowOut = value.truth);
    if (value.type == Scalar::Type::Other) return;
    const std::pair<std::string_view, std::string*> texts[] = {
        {"ph", &event_.phase},       {"name", &event_.name},    {"cat", &event_.category},
        {"pid", &event_.process},    {"tid", &event_.thread},   {"id", &event_.id},
        {"bind_id", &event_.bindId}, {"bp", &event_.bindPoint}, {"s", &event_.scope}};
    for (const auto& [field, text] : texts)
        if (name == field) {
            text->assign(value.text);
            return;
        }
}

bool EventParser::innerField(const Scalar& value) {
    if (field_ == "id2") {
        if (inner_ == "local")
            event_.localId.assign(value.text);
        else if (inner_ == "global")
            event_.id.assign(value.text);
        return false;
    }
    if (field_ != "args") return false;
    if (value.type == Scalar::Type::Text && inner_ == "name") event_.givenName.assign(value.text);
    std::optional<double> number;
    if (value.type == Scalar::Type::Number)
        number = value.number;
    else if (value.type == Scalar::Type::Text && !value.text.empty() &&
             (isDigit(value.text[0]) || value.text[0] == '-'))
        number = numberOf(value.text);
    if (!number) return false;
    if (event_.numbers.size() < kMostNumbers) event_.numbers.emplace_back(inner_, *number);
    const bool whole = *number >= 0 && *number < double(1 << 25) && *number == std::floor(*number);
    if (whole && inner_ == "step") event_.step = std::int32_t(*number);
    if (whole && inner_ == "layer") event_.layer = std::int32_t(*number);
    return whole && (inner_ == "step" || inner_ == "layer");
}

} // namespace

void TraceEvent::clear() {
    for (std::string* text :
         {&phase, &name, &category, &process, &thread, &id, &localId, &bindId, &bindPoint, &scope, &givenName})
        text->clear();
    timeNs.reset();
    durationNs.reset();
    badTime = flowIn = flowOut = false;
    step = layer = -1;
    numbers.clear();
    args.clear();
}

std::optional<std::int64_t> nanosecondsOf(std::string_view micros) {
    std::string_view text = micros;
    const bool negative = !text.empty() && text[0] == '-';
    if (negative) text.remove_prefix(1);
    if (text.empty() || !isDigit(text[0])) return std::nullopt;
    std::int64_t value = 0;
    std::size_t at = 0;
    const auto push = [&](int digit) {
        return !__builtin_mul_overflow(value, std::int64_t(10), &value) &&
               !__builtin_add_overflow(value, std::int64_t(digit), &value);
    };
    for (; at < text.size() && isDigit(text[at]); ++at)
        if (!push(text[at] - '0')) return std::nullopt;
    int decimals = 0;
    bool up = false;
    if (at < text.size() && text[at] == '.')
        for (++at; at < text.size() && isDigit(text[at]); ++at, ++decimals) {
            if (decimals < 3 && !push(text[at] - '0')) return std::nullopt;
            if (decimals == 3) up = text[at] >= '5';
        }
    if (at < text.size()) { // the rest is an exponent, or the text is no number
        const auto number = numberOf(micros);
        if (!number || std::fabs(*number) > 4e15) return std::nullopt;
        return std::int64_t(std::llround(*number * 1e3));
    }
    for (; decimals < 3; ++decimals)
        if (!push(0)) return std::nullopt;
    if (up && value < std::numeric_limits<std::int64_t>::max()) ++value;
    return negative ? -value : value;
}

TraceEventFile readTraceEventFile(std::istream& in, const std::string& path,
                                  const std::function<void(const TraceEvent&)>& take) {
    EventParser parser(in, path, take);
    nlohmann::json::sax_parse(in, &parser);
    if (!parser.file().sawEvents)
        throw Error(ErrorKind::BadInput, fmt::format("{} is JSON but no trace: it has no list of trace events", path),
                    "choose a file that Chrome, Perfetto or PyTorch's profiler has written");
    return parser.file();
}

} // namespace kvscope
