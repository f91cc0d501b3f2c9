package nodelifecycle

// What outlives a Run: how long nodes had been quiet that were not yet Unknown. The
// rest is in the nodes themselves: since when they are Unknown, and their taints.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/hawser-project/hawser/controlplane/loop"
)

const (
	// memoryName is the Lease in kube-system that has the memory in an annotation.
	// A Lease, because whoever runs controllers may write those.
	memoryName = "hawser-node-lifecycle"
	memoryKey  = "hawser.dev/silences"
	// maxMemory bounds the annotation, in bytes: an object's may have 256 KiB
	// together. Some 3,000 nodes fit; of more the longest quiet are remembered.
	maxMemory = 192 << 10
	// rememberedPart is of the grace period, in eighths, for how long a node has to
	// be quiet to be remembered: longer than a heartbeat's period. Less is lost with
	// a restart, and so is what was quiet since the last pass.
	rememberedPart = 3
)

// A spell is how long a node has been quiet since a word of it.
type spell struct {
	Word   string `json:"word"`
	Millis int64  `json:"ms"`
}

func (s spell) silent() time.Duration {
	return time.Duration(min(max(s.Millis, 0), int64(time.Hour/time.Millisecond))) * time.Millisecond
}

// A memory keeps spells in the API. It belongs to the monitor, but for of. The zero
// value of what is not set by newRun is empty.
type memory struct {
	client coordinationclient.LeaseInterface
	log    *slog.Logger

	lease  *coordinationv1.Lease // as it was last read or written; nil if there is none
	told   bool                  // that it cannot be written
	spells map[string]spell      // of the last run, by node
}

// of is what the last run knew of a node.
func (m *memory) of(node string) spell { return m.spells[node] }

// load reads what the last run left. Without it silence begins anew, which is told.
func (m *memory) load(ctx context.Context) {
	for try := 1; ; try++ {
		err := m.read(ctx)
		if err == nil {
			break
		}
		if try == healthTries || !pause(ctx, healthPause) {
			m.log.Warn("cannot read how long nodes have been silent; those that are not yet Unknown are given a new grace period", "error", err)
			return
		}
	}
	if m.lease == nil {
		return
	}
	var err error
	if m.spells, err = decodeSpells(m.lease.Annotations[memoryKey]); err != nil {
		m.log.Warn("what is remembered of silent nodes is not understood and is ignored", "lease", memoryName, "error", err)
	}
}

func (m *memory) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := m.client.Get(ctx, memoryName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		m.lease = nil
		return nil
	case err != nil:
		return fmt.Errorf("read Lease %s: %w", memoryName, err)
	}
	m.lease = lease
	return nil
}

func decodeSpells(text string) (map[string]spell, error) {
	if text == "" {
		return nil, nil
	}
	var out map[string]spell
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("decode annotation %s: %w", memoryKey, err)
	}
	return out, nil
}

// remember writes down who has been quiet for a while and is not Unknown yet. It
// asks nobody if there was, and is, nobody.
func (r *run) remember(ctx context.Context) {
	now := time.Now()
	var quiet []*observation
	for i := range r.observations {
		s := &r.observations[i]
		if !s.gone && !unknown(readyCondition(s.node), now) && now.Sub(s.rec.heard) >= r.cfg.MonitorGracePeriod*rememberedPart/8 {
			quiet = append(quiet, s)
		}
	}
	slices.SortFunc(quiet, func(a, b *observation) int { return a.rec.heard.Compare(b.rec.heard) })
	spells, size := make(map[string]spell, len(quiet)), 0
	for _, s := range quiet {
		if size += len(s.node.Name) + len(`"":{"word":"","ms":},`) + 32; size > maxMemory {
			break
		}
		spells[s.node.Name] = spell{Word: s.rec.word(s.node), Millis: now.Sub(s.rec.heard).Milliseconds()}
	}
	if wrote, err := r.memory.save(ctx, spells, now); err != nil {
		err = r.reach.note(ctx, err)
		r.memory.tell(ctx, err)
	} else if wrote {
		r.memory.told, r.answered = false, now
	}
}

// tell logs that the memory cannot be written, once.
func (m *memory) tell(ctx context.Context, err error) {
	if m.told || ctx.Err() != nil || loop.IsQuiet(err) {
		return
	}
	m.told = true
	m.log.Warn("cannot write down how long nodes have been silent; after a restart those that are not yet Unknown are given a new grace period", "error", err)
}

// save writes spells, unless there are none and were none.
func (m *memory) save(ctx context.Context, spells map[string]spell, now time.Time) (wrote bool, err error) {
	var text []byte
	if len(spells) > 0 {
		text, _ = json.Marshal(spells) // of strings and numbers, which cannot fail
	}
	if len(text) == 0 && (m.lease == nil || m.lease.Annotations[memoryKey] == "") {
		return false, nil
	}
	err = m.write(ctx, string(text), now)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		if err = m.read(ctx); err == nil {
			err = m.write(ctx, string(text), now)
		}
	}
	return err == nil, err
}

func (m *memory) write(ctx context.Context, text string, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease := cmp.Or(m.lease, &coordinationv1.Lease{}).DeepCopy()
	lease.Name = memoryName
	lease.Annotations = map[string]string{memoryKey: text}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: now}
	var err error
	if m.lease == nil {
		lease, err = m.client.Create(ctx, lease, metav1.CreateOptions{})
	} else {
		lease, err = m.client.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write Lease %s: %w", memoryName, err)
	}
	m.lease = lease
	return nil
}
