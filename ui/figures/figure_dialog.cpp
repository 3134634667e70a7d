#include "ui/figures/figure_dialog.h"

#include "base/error.h"
#include "ui/figures/figure_drawing.h"
#include "ui/frame/as_written.h"
#include "ui/frame/dialog_size.h"
#include "ui/frame/save_path.h"
#include "ui/frame/small_widgets.h"

#include <QApplication>
#include <QComboBox>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QLabel>
#include <QListWidget>
#include <QPointer>
#include <QPushButton>
#include <QScrollArea>
#include <QThreadPool>

#include <functional>

namespace kvscope::ui {
namespace {

constexpr int kPreviewWidth = 460;

/// Calls `work` on a worker thread, then calls `done` with its result or `failed` with a sentence on the GUI thread. If
/// the dialog was closed in the meantime, it calls neither.
template <class Result>
void inBackground(FigureDialog* dialog, std::function<Result()> work, std::function<void(Result)> done,
                  std::function<void(QString)> failed) {
    QThreadPool::globalInstance()->start([guard = QPointer<FigureDialog>(dialog), work = std::move(work),
                                          done = std::move(done), failed = std::move(failed)] {
        std::optional<Result> result;
        QString sentence;
        try {
            result = work();
        } catch (const Error& error) {
            sentence = QString::fromStdString(oneLine(error));
        } catch (const std::exception& error) {
            sentence = QString::fromUtf8(error.what());
        }
        QMetaObject::invokeMethod(qApp, [guard, result = std::move(result), sentence, done, failed]() mutable {
            if (!guard) return;
            result ? done(std::move(*result)) : failed(sentence);
        });
    });
}

} // namespace

FigureDialog::FigureDialog(const QStringList& files, QWidget* parent)
    : QDialog(parent), list_(new QListWidget), width_(new QComboBox), about_(new MutedLabel), preview_(new QLabel),
      status_(new QLabel), save_(new QPushButton(tr("Save…"))),
      folder_(files.isEmpty() ? QString() : QFileInfo(files.front()).absolutePath()) {
    setWindowTitle(tr("Paper Figure"));
    setAttribute(Qt::WA_DeleteOnClose);
    list_->setObjectName(QStringLiteral("figures"));
    list_->setAccessibleName(tr("Figures"));
    status_->setObjectName(QStringLiteral("figureStatus"));
    status_->setTextFormat(Qt::PlainText); // what a file says
    preview_->setTextFormat(Qt::PlainText);
    about_->setObjectName(QStringLiteral("figureAbout"));
    list_->setMinimumWidth(330);
    list_->setWordWrap(true); // the reason why a figure cannot be drawn is long
    list_->setTextElideMode(Qt::ElideNone);
    list_->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    list_->setResizeMode(QListView::Adjust);
    list_->setSpacing(2);
    for (const FigureEntry& entry : figures()) {
        auto* item = new QListWidgetItem(tr(entry.title), list_);
        item->setToolTip(QString::fromUtf8(entry.redraws));
    }
    width_->addItem(tr("One column, 85 mm"), 85);
    width_->addItem(tr("Two columns, 170 mm"), 170);
    about_->setWordWrap(true);
    status_->setWordWrap(true);
    preview_->setFixedSize(kPreviewWidth, kPreviewWidth);
    preview_->setAlignment(Qt::AlignHCenter | Qt::AlignTop);
    auto* close = new QPushButton(tr("Close"));
    save_->setEnabled(false);
    save_->setDefault(true);

    auto* buttons = new QHBoxLayout;
    buttons->addWidget(width_);
    buttons->addStretch();
    buttons->addWidget(close);
    buttons->addWidget(save_);
    auto* column = new QWidget;
    auto* right = new QVBoxLayout(column);
    right->setContentsMargins(0, 0, 0, 0);
    right->addWidget(preview_);
    right->addWidget(about_);
    right->addStretch();
    auto* top = new QHBoxLayout;
    top->addWidget(list_, 1);
    top->addWidget(makeColumnScroll(column));
    auto* body = new QVBoxLayout(this);
    body->addLayout(top, 1);
    body->addWidget(status_);
    body->addLayout(buttons);

    connect(close, &QPushButton::clicked, this, &QDialog::reject);
    connect(save_, &QPushButton::clicked, this, &FigureDialog::chooseFile);
    connect(list_, &QListWidget::currentRowChanged, this, &FigureDialog::choose);
    connect(width_, &QComboBox::currentIndexChanged, this, [this] {
        if (data_) showFigure(*data_);
    });

    resizeOnScreen(*this, {860, 580});
    status_->setText(tr("Reading the open traces…"));
    list_->setEnabled(false);
    std::vector<std::string> paths;
    for (const QString& file : files) paths.push_back(file.toStdString());
    using Sources = std::shared_ptr<const FigureSources>;
    inBackground<Sources>(
        this, [paths] { return std::make_shared<const FigureSources>(readFigureSources(paths)); },
        [this](Sources sources) { showSources(std::move(sources)); },
        [this](const QString& sentence) { status_->setText(sentence); });
}

void FigureDialog::showSources(std::shared_ptr<const FigureSources> sources) {
    sources_ = std::move(sources);
    int first = -1;
    for (int row = 0; row < list_->count(); ++row) {
        const FigureEntry& entry = figures()[std::size_t(row)];
        const QString why = QString::fromStdString(entry.refusal(*sources_));
        QListWidgetItem* item = list_->item(row);
        if (why.isEmpty()) {
            if (first < 0) first = row;
            continue;
        }
        item->setFlags(item->flags() & ~(Qt::ItemIsEnabled | Qt::ItemIsSelectable));
        item->setToolTip(asWritten(tr("Not from these traces: %1; %2.").arg(why, tr(entry.needs))));
        item->setText(tr("%1\nneeds more: %2").arg(tr(entry.title), why));
    }
    list_->setEnabled(true);
    status_->setText(first < 0 ? tr("The open traces can draw none of these; point at one to see what it needs.")
                               : QString());
    emit judged();
    if (first >= 0) list_->setCurrentRow(first);
}

void FigureDialog::choose(int row) {
    if (row < 0 || !sources_) return;
    const FigureEntry& entry = figures()[std::size_t(row)];
    data_.reset();
    save_->setEnabled(false);
    preview_->setPixmap({});
    about_->setText({});
    status_->setText(tr("Drawing…"));
    inBackground<FigureData>(
        this, [entry, sources = sources_] { return makeFigure(entry, *sources); },
        [this, number = ++asked_](FigureData figure) {
            if (number == asked_) showFigure(std::move(figure));
        },
        [this, number = asked_](const QString& sentence) {
            if (number == asked_) status_->setText(sentence);
        });
}

void FigureDialog::showFigure(FigureData figure) {
    data_ = std::move(figure);
    const QImage picture = figurePicture(*data_, millimetres());
    const qreal ratio = devicePixelRatioF();
    QPixmap shown =
        QPixmap::fromImage(picture.scaled(preview_->size() * ratio, Qt::KeepAspectRatio, Qt::SmoothTransformation));
    shown.setDevicePixelRatio(ratio);
    preview_->setPixmap(shown);
    about_->setText(QString::fromStdString(data_->note));
    status_->setText(tr("Like %1").arg(QString::fromUtf8(figures()[std::size_t(list_->currentRow())].redraws)));
    save_->setEnabled(true);
    emit drawn();
}

QSizeF FigureDialog::millimetres() const { return {width_->currentData().toDouble(), 0}; }

void FigureDialog::chooseFile() {
    const QString id = QString::fromUtf8(figures()[std::size_t(list_->currentRow())].id);
    const QString path = askSavePath(this, tr("Save the figure"), folder_ + u'/' + id + ".svg",
                                     {{tr("SVG"), "svg"}, {tr("PDF"), "pdf"}, {tr("PNG"), "png"}});
    if (!path.isEmpty()) save(path);
}

bool FigureDialog::save(const QString& path) {
    if (!data_) return false;
    try {
        writeFigure(*data_, path, millimetres());
    } catch (const Error& error) {
        status_->setText(QString::fromStdString(oneLine(error)));
        return false;
    }
    folder_ = QFileInfo(path).absolutePath();
    status_->setText(tr("Saved %1").arg(path));
    return true;
}

} // namespace kvscope::ui
