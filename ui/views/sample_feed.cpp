#include "ui/views/sample_feed.h"

#include "base/error.h"
#include "ui/frame/run_names.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvscope::ui {

namespace {
constexpr int kPieceSteps = 8192;             // read between two looks at whether somebody still waits
constexpr int kGlanceSteps = 512;             // of each run
constexpr int kGlanceFrom = 4 * kGlanceSteps; // shorter runs are there in a moment anyway
} // namespace

void SampleFeed::ask(const std::vector<RunKey>& runs, Done done,
                     std::function<void(std::size_t, const QString&)> failed, std::function<void()> progress) {
    ++epoch_;
    wanted_ = runs;
    done_ = std::move(done), failed_ = std::move(failed), progress_ = std::move(progress);
    next_ = 0;
    asking_ = paused_ = false;
    if (std::exchange(counted_, coldSteps()) != coldSteps()) kept_.clear();
    std::erase_if(kept_, [&](const Kept& kept) {
        const OpenRun* open = workspace_.find(kept.key);
        const bool replaced = open && kept.sample && open->row.createdUtc != kept.sample->run.createdUtc;
        return replaced || std::find(wanted_.begin(), wanted_.end(), kept.key) == wanted_.end();
    });
    glances_.clear();
    if (deservesGlance())
        glance();
    else
        askNext();
}

int SampleFeed::shortest() const {
    int steps = std::numeric_limits<int>::max();
    for (const RunKey& key : wanted_)
        if (const OpenRun* run = workspace_.find(key)) steps = std::min(steps, run->row.steps);
    return steps;
}

/// While nothing is known of a run that takes long.
bool SampleFeed::deservesGlance() const {
    return std::any_of(wanted_.begin(), wanted_.end(), [this](const RunKey& key) {
        const OpenRun* run = workspace_.find(key);
        return run && run->row.steps > kGlanceFrom && std::none_of(kept_.begin(), kept_.end(), [&](const Kept& kept) {
                   return kept.key == key && kept.sample;
               });
    });
}

void SampleFeed::glance() {
    asking_ = true;
    const RunKey key = wanted_[next_];
    workspace_.query<Sample>(
        context_, slot_, key,
        [runId = key.runId, which = evenSteps(shortest(), kGlanceSteps)](TraceReader& reader) -> Sample {
            try {
                return std::make_shared<RunSample>(glanceAtRun(reader, runId, which));
            } catch (const Error& error) {
                if (error.kind == ErrorKind::Cancelled) throw;
                return {}; // reading all of it says why
            }
        },
        [this, epoch = epoch_](Sample sample) {
            if (epoch != epoch_) return;
            if (sample) {
                glances_.push_back(std::move(sample));
                if (++next_ < wanted_.size()) return glance();
            }
            next_ = 0; // for whoever stops it now
            if (glances_.size() == wanted_.size()) done_(std::exchange(glances_, {}), Part::Glance);
            if (epoch == epoch_) askNext();
        });
}

void SampleFeed::forget() {
    ++epoch_;
    asking_ = paused_ = false;
    wanted_.clear();
    kept_.clear();
}

void SampleFeed::pause() {
    if (!asking_) return;
    ++epoch_; // an answer that is under way belongs to an earlier epoch and is dropped
    asking_ = false;
    paused_ = true;
    workspace_.query<int>(
        // A new read in the same slot interrupts the one that is under way.
        context_, slot_, wanted_[next_], [](TraceReader&) { return 0; }, [](int) {});
}

void SampleFeed::resume() {
    // Some runs may have grown meanwhile, so all are looked at again.
    if (std::exchange(paused_, false)) next_ = 0, askNext();
}

SampleFeed::Kept& SampleFeed::keptOf(const RunKey& key) {
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.key == key; });
    return found != kept_.end() ? *found : kept_.emplace_back(Kept{key, {}, false});
}

int SampleFeed::loaded() const {
    int steps = 0;
    for (const Kept& kept : kept_)
        if (kept.sample) steps += kept.sample->nextStep;
    return steps;
}

int SampleFeed::total() const {
    int steps = 0;
    for (const RunKey& key : wanted_)
        if (const OpenRun* run = workspace_.find(key)) steps += run->row.steps;
    return std::max(steps, loaded());
}

void SampleFeed::askNext() {
    while (next_ < wanted_.size() && keptOf(wanted_[next_]).all) ++next_;
    if (next_ == wanted_.size()) {
        asking_ = false;
        std::vector<Sample> samples;
        for (const RunKey& key : wanted_) samples.push_back(keptOf(key).sample);
        return done_(std::move(samples), Part::All);
    }
    struct Answer {
        std::shared_ptr<RunSample> sample;
        bool complete = false;
        QString error;
    };
    asking_ = true;
    const RunKey key = wanted_[next_];
    const OpenRun* open = workspace_.find(key);
    const bool grows = open && isGrowing(*open);
    workspace_.query<Answer>(
        context_, slot_, key,
        [before = keptOf(key).sample, runId = key.runId](TraceReader& reader) {
            Answer answer;
            try {
                answer.sample = before ? std::make_shared<RunSample>(*before) : std::make_shared<RunSample>();
                answer.complete = extendRunSample(*answer.sample, reader, runId, kPieceSteps);
            } catch (const Error& error) {
                if (error.kind == ErrorKind::Cancelled) throw;
                answer.error = QString::fromStdString(oneLine(error));
            }
            return answer;
        },
        [this, epoch = epoch_, key, grows](Answer answer) {
            if (epoch != epoch_) return;
            if (!answer.error.isEmpty()) {
                asking_ = false;
                return failed_(next_, answer.error);
            }
            Kept& kept = keptOf(key);
            kept.sample = std::move(answer.sample);
            kept.all = answer.complete && !grows;
            if (answer.complete) ++next_;
            progress_();
            if (epoch == epoch_) askNext();
        });
}

} // namespace kvscope::ui
