#include "ui/window/session_journal.h"

#include "ui/frame/saved_file.h"

#include <QDir>
#include <QFile>
#include <QJsonArray>
#include <QJsonDocument>
#include <QJsonObject>
#include <QLockFile>
#include <QUuid>

#include <utility>

namespace kvscope::ui {

namespace {

constexpr qint64 kMostBytes = 1 << 20; // largest size of a journal; a larger file is no journal

const QString kSuffix = QStringLiteral(".journal");

/// The lock file of a journal. Its program holds the lock for as long as it runs, so the lock never becomes stale by
/// age.
std::unique_ptr<QLockFile> lockOf(const QString& journal) {
    auto lock = std::make_unique<QLockFile>(journal + QStringLiteral(".lock"));
    lock->setStaleLockTime(0);
    return lock;
}

QStringList listOf(const QJsonValue& value) {
    QStringList list;
    for (const QJsonValue& each : value.toArray())
        if (each.isString()) list << each.toString();
    return list;
}

} // namespace

SessionJournal::LeftBehind::LeftBehind(Entry entry, QString file, std::unique_ptr<QLockFile> lock)
    : entry_(std::move(entry)), file_(std::move(file)), lock_(std::move(lock)) {}
SessionJournal::LeftBehind::~LeftBehind() = default;
SessionJournal::LeftBehind::LeftBehind(LeftBehind&&) noexcept = default;

void SessionJournal::LeftBehind::forget() { QFile::remove(file_); }

SessionJournal::SessionJournal(const QString& folder) : folder_(folder) {}

SessionJournal::~SessionJournal() = default;

void SessionJournal::write(const Entry& entry) {
    if (ended_ || entry == written_) return;
    if (entry == Entry() && !lock_) return; // nothing is open, and no journal was written before
    if (!lock_) {
        if (!QDir().mkpath(folder_)) return;
        file_ = QDir(folder_).filePath(QUuid::createUuid().toString(QUuid::WithoutBraces) + kSuffix);
        lock_ = lockOf(file_);
        if (!lock_->tryLock(0)) {
            lock_.reset();
            return;
        }
    }
    QJsonObject text{{QStringLiteral("open"), QJsonArray::fromStringList(entry.open)},
                     {QStringLiteral("recording"), QJsonArray::fromStringList(entry.recording)}};
    // A longer text would make the journal one that leftBehind() does not read, and the open traces would be lost too.
    if (!entry.waiting.isEmpty() && entry.waiting.size() < kMostBytes / 2)
        text[QStringLiteral("waiting")] = QJsonDocument::fromJson(entry.waiting).array();
    // If the program is killed while it writes, the file has either the old or the new content.
    if (saveBytes(QJsonDocument(text).toJson(), file_)) written_ = entry;
}

void SessionJournal::end(const QByteArray& waiting) {
    if (!waiting.isEmpty()) write({{}, {}, waiting});
    ended_ = true;
    if (!lock_) return;
    if (waiting.isEmpty()) QFile::remove(file_);
    lock_.reset();
}

std::vector<SessionJournal::LeftBehind> SessionJournal::leftBehind() const {
    std::vector<LeftBehind> all;
    const QDir folder(folder_);
    const QStringList names =
        folder.entryList({QLatin1Char('*') + kSuffix}, QDir::Files | QDir::Readable, QDir::Time | QDir::Reversed);
    for (const QString& name : names) {
        const QString path = folder.filePath(name);
        std::unique_ptr<QLockFile> lock = lockOf(path);
        if (path == file_ || !lock->tryLock(0)) continue; // the program of this journal still runs
        QFile file(path);
        if (!file.open(QIODevice::ReadOnly)) continue;
        const QJsonObject text = QJsonDocument::fromJson(file.read(kMostBytes)).object();
        const QJsonArray waiting = text.value(QLatin1String("waiting")).toArray();
        Entry entry{listOf(text.value(QLatin1String("open"))), listOf(text.value(QLatin1String("recording"))),
                    waiting.isEmpty() ? QByteArray() : QJsonDocument(waiting).toJson(QJsonDocument::Compact)};
        if (entry == Entry()) {
            QFile::remove(path); // the journal names no trace
            continue;
        }
        all.emplace_back(std::move(entry), path, std::move(lock));
    }
    return all;
}

} // namespace kvscope::ui
