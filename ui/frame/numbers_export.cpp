#include "ui/frame/numbers_export.h"

#include "base/error.h"
#include "profiler/export/output_file.h"
#include "ui/frame/clipboard.h"
#include "ui/frame/json_lines.h"
#include "ui/frame/packed_name.h"

#include <QApplication>
#include <QClipboard>
#include <QElapsedTimer>
#include <QFile>

#include <ostream>
#include <string>
#include <thread>

namespace kvscope::ui {

namespace {
constexpr int kToldMs = 100; // between two signals of progress
// The most bytes to copy: many programs cannot even paste a table of this size.
constexpr std::size_t kMostCopied = 256u << 20;
constexpr std::size_t kBuffered = std::size_t(1) << 18; // bytes written to the file at once
} // namespace

/// A running export. All its functions run on its own thread, except the constructor, cancel() and the destructor.
class NumbersExport::Work final : public NumberSink {
public:
    Work(NumbersExport& owner, quint64 number, NumberWriter numbers, const QString& path)
        : id(number), owner_(owner), numbers_(std::move(numbers)), path_(path), thread_([this] { run(); }) {}
    ~Work() override {
        cancelled_ = true;
        thread_.join();
    }
    void cancel() { cancelled_ = true; }
    const quint64 id;

    void add(std::string_view lines) override {
        if (cancelled_) throw Error(ErrorKind::Cancelled, "cancelled");
        bytes_ += qint64(lines.size());
        buffer_ += lines;
        if (path_.isEmpty()) {
            if (buffer_.size() > kMostCopied)
                throw Error(ErrorKind::Unsupported, "this table is larger than the clipboard should hold",
                            "zoom in, or export it as a file");
        } else if (buffer_.size() >= kBuffered) {
            flush();
        }
        tell();
    }
    void progress(double share) override {
        share_ = share;
        tell();
    }
    const std::atomic<bool>* interrupt() const override { return &cancelled_; }

private:
    void run() {
        QString problem, table;
        bool cancelled = false;
        try {
            if (!path_.isEmpty()) {
                file_ = std::make_unique<OutputFile>(QFile::encodeName(path_).toStdString());
                if (unpackedName(path_).endsWith(QLatin1String(".jsonl"), Qt::CaseInsensitive))
                    lines_ = std::make_unique<JsonLines>();
            }
            numbers_(*this);
            if (file_) {
                flush();
                file_->commit();
            } else {
                table = tableFromCsv(QString::fromStdString(buffer_));
            }
        } catch (const Error& error) {
            cancelled = error.kind == ErrorKind::Cancelled;
            if (!cancelled) problem = QString::fromStdString(oneLine(error));
        } catch (const std::exception& failure) {
            problem = QString::fromUtf8(failure.what());
        }
        numbers_ = nullptr;
        file_.reset(); // removes a file that is not complete
        QMetaObject::invokeMethod(
            &owner_,
            [&owner = owner_, id = id, path = path_, table, problem, cancelled] {
                if (!table.isEmpty()) QApplication::clipboard()->setText(table);
                if (owner.work_ && owner.work_->id == id) owner.work_.reset(); // unless another export has begun
                emit owner.finished(path, problem, cancelled);
            },
            Qt::QueuedConnection);
    }
    void flush() {
        if (lines_) buffer_ = lines_->convert(buffer_);
        file_->stream().write(buffer_.data(), std::streamsize(buffer_.size()));
        file_->requireWritten();
        buffer_.clear();
    }
    void tell() {
        if (told_.isValid() && told_.elapsed() < kToldMs) return;
        told_.start();
        QMetaObject::invokeMethod(
            &owner_, [&owner = owner_, share = share_, bytes = bytes_] { emit owner.progressed(share, bytes); },
            Qt::QueuedConnection);
    }

    NumbersExport& owner_;
    NumberWriter numbers_;
    QString path_; // empty: to the clipboard
    std::unique_ptr<OutputFile> file_;
    std::unique_ptr<JsonLines> lines_;
    std::string buffer_;
    double share_ = 0;
    qint64 bytes_ = 0;
    QElapsedTimer told_;
    std::atomic<bool> cancelled_{false};
    std::thread thread_; // last member: the thread uses all others
};

NumbersExport::NumbersExport(QObject* parent) : QObject(parent) {}
NumbersExport::~NumbersExport() = default; // waits for the export; Qt drops the calls that it has posted

void NumbersExport::start(NumberWriter numbers, const QString& path) {
    work_.reset(); // cancels the running export
    work_ = std::make_unique<Work>(*this, ++started_, std::move(numbers), path);
}

void NumbersExport::toFile(NumberWriter numbers, const QString& path) { start(std::move(numbers), path); }
void NumbersExport::toClipboard(NumberWriter numbers) { start(std::move(numbers), {}); }

void NumbersExport::cancel() {
    if (work_) work_->cancel();
}

bool NumbersExport::running() const { return work_ != nullptr; }

} // namespace kvscope::ui
