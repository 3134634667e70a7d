#include "ui/widgets/welcome_page.h"

#include "base/error.h"
#include "resources/samples.h"
#include "ui/frame/as_written.h"
#include "ui/frame/saved_file.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"

#include <QByteArrayView>
#include <QCryptographicHash>
#include <QDir>
#include <QEvent>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QLabel>
#include <QPushButton>
#include <QStandardPaths>
#include <QVBoxLayout>

#include <utility>

namespace kvscope::ui {

namespace {

/// Unpacks a sample into a file, so that it opens like any other trace. @return the path of the file. The folder is
/// named after the content of the sample, so that the sample of another program version with the same name gets another
/// file. @throws Error(Storage)
QString sampleFile(const resources::SampleTrace& sample) {
    const QByteArrayView bytes(sample.bytes.data(), qsizetype(sample.bytes.size()));
    const QByteArray content = QCryptographicHash::hash(bytes, QCryptographicHash::Sha256).toHex().first(8);
    const QDir folder(QStandardPaths::writableLocation(QStandardPaths::AppLocalDataLocation) +
                      QStringLiteral("/samples/") + QString::fromLatin1(content));
    const QString path = folder.filePath(QString::fromUtf8(sample.file.data(), qsizetype(sample.file.size())));
    if (QFileInfo(path).size() >= bytes.size()) return path; // notes of the user make the copy longer
    QSaveFile file(path);                                    // the file appears when it is complete
    const bool written = folder.mkpath(QStringLiteral(".")) && file.open(QIODevice::WriteOnly) &&
                         file.write(bytes.data(), bytes.size()) == bytes.size() && commitWhole(file);
    if (!written)
        throw Error(ErrorKind::Storage, "the sample cannot be unpacked to " + path.toStdString(),
                    "make room there, or make the folder writable");
    return path;
}

constexpr qsizetype kRecentShown = 5;
constexpr int kBetweenLinks = 6; // px; more than between the lines of one that wraps

void empty(QVBoxLayout& list) {
    while (QLayoutItem* item = list.takeAt(0)) {
        if (QWidget* old = item->widget()) { // deleted later: the user may just have clicked this link
            old->hide();
            old->setObjectName({});
            old->deleteLater();
        }
        delete item;
    }
}

} // namespace

WelcomePage::WelcomePage(QWidget* parent)
    : QWidget(parent), run_(new QPushButton(tr("Run the session"))), runProblem_(new MutedLabel),
      recentTitle_(new MutedLabel(tr("Recent traces"))), tracesTitle_(new MutedLabel(tr("Recorded here"))),
      links_(new MutedLabel), samples_(new QVBoxLayout), recent_(new QVBoxLayout), traceList_(new QVBoxLayout) {
    auto* column = new QWidget;
    column->setMaximumWidth(660);
    auto* body = new QVBoxLayout(column);
    body->setSpacing(10);
    auto* title = new QLabel(tr("See what sparse attention does to your KV cache"));
    QFont large = title->font();
    large.setPointSizeF(large.pointSizeF() * 1.6);
    large.setWeight(QFont::DemiBold);
    title->setFont(large);
    title->setWordWrap(true);
    body->addWidget(title);
    auto* steps = new QLabel(
        tr("<table cellspacing=\"0\" cellpadding=\"4\">"
           "<tr><td><b>1</b></td><td>Choose a model, a prompt and a method on the left. The embedded model "
           "and a needle-in-a-haystack prompt are ready to go.</td></tr>"
           "<tr><td><b>2</b></td><td>Run. Tokens stream in below while locality, selection and transfers fill "
           "in here.</td></tr>"
           "<tr><td><b>3</b></td><td>Click a token, a cell or a bar: every view and the facts on the right "
           "follow.</td></tr></table>"));
    steps->setWordWrap(true);
    body->addWidget(steps);

    auto* buttons = new QHBoxLayout;
    run_->setProperty("primary", true);
    run_->setMinimumHeight(34);
    run_->setObjectName(QStringLiteral("welcomeRun"));
    auto* open = new QPushButton(tr("Open trace…"));
    open->setMinimumHeight(34);
    buttons->addWidget(run_);
    buttons->addWidget(open);
    buttons->addStretch();
    runProblem_->setObjectName(QStringLiteral("welcomeRunProblem"));
    runProblem_->setWordWrap(true);
    runProblem_->hide();
    body->addSpacing(6);
    body->addLayout(buttons);
    body->addWidget(runProblem_);
    links_->setTextFormat(Qt::RichText);
    links_->setWordWrap(true);
    links_->setTextInteractionFlags(Qt::LinksAccessibleByMouse | Qt::LinksAccessibleByKeyboard);
    body->addWidget(links_);
    body->addSpacing(14);
    body->addWidget(new MutedLabel(tr("Sample traces, measured on a GPU")));
    samples_->setSpacing(kBetweenLinks);
    body->addLayout(samples_);
    body->addSpacing(10);
    body->addWidget(recentTitle_);
    recent_->setSpacing(kBetweenLinks);
    body->addLayout(recent_);
    body->addSpacing(10);
    tracesTitle_->setObjectName(QStringLiteral("tracesTitle"));
    tracesTitle_->hide();
    body->addWidget(tracesTitle_);
    traceList_->setSpacing(kBetweenLinks);
    body->addLayout(traceList_);

    auto* row = new QHBoxLayout;
    row->addStretch(1);
    row->addWidget(column, 12);
    row->addStretch(1);
    auto* layout = new QVBoxLayout(this);
    layout->addStretch(2);
    layout->addLayout(row);
    layout->addStretch(3);
    connect(run_, &QPushButton::clicked, this, &WelcomePage::runRequested);
    connect(open, &QPushButton::clicked, this, &WelcomePage::openRequested);
    connect(links_, &QLabel::linkActivated, this, [this](const QString& link) {
        if (link == QLatin1String("shortcuts"))
            emit shortcutsRequested();
        else
            emit definitionsRequested();
    });
    setRecent({});
    setFocusProxy(run_);
}

void WelcomePage::changeEvent(QEvent* event) {
    QWidget::changeEvent(event);
    // The colour stands in the text of the links.
    if (event->type() == QEvent::PaletteChange) setRecent(QStringList(files_));
}

void WelcomePage::showEvent(QShowEvent* event) {
    QWidget::showEvent(event);
    emit tracesWanted();
}

void WelcomePage::setRecent(const QStringList& files) {
    files_ = files;
    const QString accent = Theme::current().accent.name();
    links_->setText(
        tr("<a href=\"shortcuts\" style=\"color:%1\">Keyboard shortcuts</a> (F1) &nbsp;·&nbsp; <a href=\"definitions\" "
           "style=\"color:%1\">Definitions</a> &nbsp;·&nbsp; or drop .kvtrace files anywhere")
            .arg(accent));
    for (QVBoxLayout* list : {samples_, recent_}) empty(*list);
    const QStringList samples = sampleTitles();
    for (qsizetype i = 0; i < samples.size(); ++i) {
        auto* link =
            new QLabel(QStringLiteral("<a href=\"%1\" style=\"color:%3\">%2</a>").arg(i).arg(samples[i], accent));
        link->setObjectName(QStringLiteral("sample%1").arg(i));
        link->setWordWrap(true);
        link->setTextInteractionFlags(Qt::LinksAccessibleByMouse | Qt::LinksAccessibleByKeyboard);
        connect(link, &QLabel::linkActivated, this, [this](const QString& index) { openSample(index.toUInt()); });
        samples_->addWidget(link);
    }
    recentTitle_->setVisible(!files.isEmpty());
    for (const QString& file : files.mid(0, kRecentShown)) {
        const QString name = QFileInfo(file).fileName();
        const bool there = QFileInfo::exists(file);
        auto* link = there ? new QLabel(QStringLiteral("<a href=\"%1\" style=\"color:%3\">%2</a>")
                                            .arg(file.toHtmlEscaped(), name.toHtmlEscaped(), accent))
                           : new MutedLabel(tr("%1 (no longer there)").arg(name));
        link->setTextFormat(there ? Qt::RichText : Qt::PlainText); // a file name may look like markup
        link->setWordWrap(true);
        link->setTextInteractionFlags(Qt::LinksAccessibleByMouse | Qt::LinksAccessibleByKeyboard);
        link->setToolTip(asWritten(file));
        connect(link, &QLabel::linkActivated, this, &WelcomePage::fileRequested);
        recent_->addWidget(link);
    }
    listTraces();
}

QStringList WelcomePage::sampleTitles() {
    QStringList titles;
    for (const resources::SampleTrace& sample : resources::sampleTraces())
        titles << QString::fromUtf8(sample.title.data(), qsizetype(sample.title.size()));
    return titles;
}

void WelcomePage::openSample(std::size_t index) {
    try {
        const resources::SampleTrace& sample = resources::sampleTraces()[index];
        const QString path = sampleFile(sample);
        emit sampleRequested(path, QString::fromUtf8(sample.view.data(), qsizetype(sample.view.size())));
        emit fileRequested(path);
    } catch (const Error& error) {
        emit failed(QString::fromStdString(oneLine(error)));
    }
}

void WelcomePage::setTraces(std::vector<TraceFacts> traces) {
    traces_ = std::move(traces);
    listTraces();
}

void WelcomePage::listTraces() {
    empty(*traceList_);
    const Theme& theme = Theme::current();
    const QStringList above = files_.mid(0, kRecentShown);
    for (const TraceFacts& trace : traces_) {
        if (above.contains(trace.path)) continue;
        auto* link = new QLabel(
            QStringLiteral("<a href=\"%1\" style=\"color:%3\">%2</a> &nbsp;<span style=\"color:%4\">%5</span>")
                .arg(trace.path.toHtmlEscaped(), trace.name.toHtmlEscaped(), theme.accent.name(),
                     (trace.stale ? theme.warning : theme.mutedText).name(), describe(trace).toHtmlEscaped()));
        link->setObjectName(QStringLiteral("recordedTrace"));
        link->setTextFormat(Qt::RichText);
        link->setWordWrap(true);
        link->setTextInteractionFlags(Qt::LinksAccessibleByMouse | Qt::LinksAccessibleByKeyboard);
        link->setToolTip(asWritten(trace.path));
        connect(link, &QLabel::linkActivated, this, &WelcomePage::fileRequested);
        traceList_->addWidget(link);
    }
    tracesTitle_->setVisible(traceList_->count() > 0);
}

void WelcomePage::setRunProblem(const QString& problem) {
    run_->setEnabled(problem.isEmpty());
    run_->setToolTip(asWritten(problem));
    runProblem_->setText(problem); // the reason is visible without the pointer over the button
    runProblem_->setVisible(!problem.isEmpty());
}

} // namespace kvscope::ui
