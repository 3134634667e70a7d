// tokenizer.model: a protobuf message, of which a tokenizer needs four kinds of fields. Reading them here spares a
// dependency that is larger than this file by orders of magnitude. Field numbers: sentencepiece_model.proto.
#include "core/model/tokenizer/from.h"
#include "core/model/tokenizer/spec.h"

#include <bit>
#include <fmt/format.h>

namespace kvscope::tokenizing {
namespace {

/// One field of a message; for lengths, `bytes` is the content.
struct Field {
    std::uint64_t number = 0, value = 0;
    std::string_view bytes;
};

/// Walks over the fields of a message.
class Message {
public:
    Message(std::string_view bytes, const std::string& origin) : rest_(bytes), origin_(origin) {}

    bool next(Field& field) {
        if (rest_.empty()) return false;
        const std::uint64_t tag = varint();
        field = {tag >> 3, 0, {}};
        switch (tag & 7) {
        case 0:
            field.value = varint();
            return true;
        case 1:
            field.bytes = take(8);
            return true;
        case 2:
            field.bytes = take(varint());
            return true;
        case 5: {
            field.bytes = take(4);
            std::uint32_t bits = 0; // little-endian, whatever the machine
            for (int i = 3; i >= 0; --i) bits = bits << 8 | static_cast<unsigned char>(field.bytes[std::size_t(i)]);
            field.value = bits;
            return true;
        }
        default:
            refuseMalformed(origin_, "this is not a SentencePiece file");
        }
    }

private:
    std::uint64_t varint() {
        std::uint64_t value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            const auto byte = static_cast<unsigned char>(take(1)[0]);
            value |= std::uint64_t(byte & 0x7F) << shift;
            if (byte < 0x80) return value;
        }
        refuseMalformed(origin_, "this is not a SentencePiece file");
    }
    std::string_view take(std::uint64_t size) {
        if (size > rest_.size()) refuseMalformed(origin_, "the file ends early");
        const std::string_view taken = rest_.substr(0, std::size_t(size));
        rest_.remove_prefix(std::size_t(size));
        return taken;
    }
    std::string_view rest_;
    const std::string& origin_;
};

void readPiece(std::string_view bytes, TokenizerArrays& arrays, const std::string& origin) {
    std::string text;
    float score = 0;
    std::uint64_t type = 1;
    Field field;
    for (Message message(bytes, origin); message.next(field);) {
        if (field.number == 1) text = field.bytes;
        if (field.number == 2) score = std::bit_cast<float>(std::uint32_t(field.value));
        if (field.number == 3) type = field.value;
    }
    if (type < 1 || type > 6) refuseMalformed(origin, fmt::format("token {} has no type", arrays.tokens.size()));
    arrays.tokens.push_back(std::move(text));
    arrays.scores.push_back(score);
    arrays.types.push_back(std::int32_t(type));
}

std::optional<std::int32_t> idOf(std::uint64_t value) { // negative: there is none
    return value <= std::uint64_t(kLargestId) ? std::optional(std::int32_t(value)) : std::nullopt;
}

void readTrainer(std::string_view bytes, TokenizerArrays& arrays, const std::string& origin) {
    Field field;
    for (Message message(bytes, origin); message.next(field);) {
        if (field.number == 3) {
            if (field.value != 1 && field.value != 2) refuseUnsupported(origin, "its model is neither unigram nor BPE");
            arrays.model = field.value == 1 ? "t5" : "llama";
        }
        if (field.number == 24 && field.value != 0) refuseUnsupported(origin, "it puts spaces behind words");
        if (field.number == 35) arrays.byteFallback = field.value != 0;
        if (field.number == 40) arrays.unknownId = idOf(field.value);
        if (field.number == 41) arrays.bosId = idOf(field.value);
        if (field.number == 42) arrays.eosId = idOf(field.value);
    }
}

void readNormalizer(std::string_view bytes, TokenizerArrays& arrays, const std::string& origin) {
    Field field;
    for (Message message(bytes, origin); message.next(field);) {
        if (field.number == 2 && !field.bytes.empty())
            throw Error(ErrorKind::Unsupported, origin + ": it normalises texts by a character map",
                        "use the model's folder with tokenizer.json instead");
        if (field.number == 3) arrays.addSpacePrefix = field.value != 0;
        if (field.number == 4) arrays.removeExtraWhitespaces = field.value != 0;
        if (field.number == 5 && field.value == 0) refuseUnsupported(origin, "it does not escape spaces");
    }
}

} // namespace

TokenizerArrays readSentencePiece(std::string_view file, const std::string& origin) {
    TokenizerArrays arrays;
    arrays.model = "t5"; // what the file means when it does not say
    arrays.byteFallback = false;
    arrays.prefixAfterSpecials = false;
    arrays.removeExtraWhitespaces = true;
    arrays.unknownId = 0, arrays.bosId = 1, arrays.eosId = 2;
    Field field;
    for (Message message(file, origin); message.next(field);) {
        if (field.number == 1) readPiece(field.bytes, arrays, origin);
        if (field.number == 2) readTrainer(field.bytes, arrays, origin);
        if (field.number == 3) readNormalizer(field.bytes, arrays, origin);
        if (arrays.tokens.size() > std::size_t(kLargestId)) refuseMalformed(origin, "the vocabulary is too large");
    }
    arrays.addBos = arrays.model == "llama"; // as the models that come with such a file were trained
    if (arrays.bosId && std::size_t(*arrays.bosId) >= arrays.tokens.size()) arrays.bosId.reset();
    if (arrays.eosId && std::size_t(*arrays.eosId) >= arrays.tokens.size()) arrays.eosId.reset();
    return arrays;
}

} // namespace kvscope::tokenizing
