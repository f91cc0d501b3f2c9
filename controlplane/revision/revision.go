// Package revision keeps the pod templates that a DaemonSet or a StatefulSet has had,
// as ControllerRevisions of the owner, so that kubectl can show them and go back.
//
// A revision remembers one template, by a patch that gives it back, and has a number
// that says when it was the owner's last. A template that the owner gets again has its
// old revision, with the next number. Data, names and labels are those of Kubernetes'
// own controllers, and what kubectl compares.
//
// What it is not: it does not go back. kubectl does that by giving the owner an earlier
// template.
package revision

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/controlplane/children"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// maxPrefix is how much of the owner's name is in the name of a revision, in bytes.
const maxPrefix = 223

// maxCollisions is how many names are tried for a revision at a time.
const maxCollisions = 100

// A Revision is a template that an owner has or had.
type Revision = appsv1.ControllerRevision

// Config configures a History. All is required.
type Config struct {
	Kind schema.GroupVersionKind // of the owners
	// Live looks an owner up at the API server, not in a cache.
	Live func(ctx context.Context, namespace, name string) (metav1.Object, error)
	// Label is the label of a revision that has its hash.
	Label string
	// Hash names a revision among those of one owner.
	Hash func(t *corev1.PodTemplateSpec, data []byte, collisions *int32) string
}

// A History is the revisions of all owners of one kind. Its methods may be called from
// any goroutine, for one owner from one at a time.
type History struct {
	*children.Children[*Revision]

	cfg    Config
	client kubernetes.Interface
}

// New returns the revisions that f's informer shows. It fails if that has stopped.
func New(client kubernetes.Interface, f informers.SharedInformerFactory, c Config) (*History, error) {
	kept, err := children.New(children.Config[*Revision]{
		Client:   func(ns string) children.Client[*Revision] { return client.AppsV1().ControllerRevisions(ns) },
		Informer: f.Apps().V1().ControllerRevisions().Informer(), Noun: "controller revision", Kind: c.Kind, Live: c.Live,
	})
	if err != nil {
		return nil, err
	}
	return &History{Children: kept, cfg: c, client: client}, nil
}

// Of returns o's revisions, the last one last. It adopts and releases some first.
func (h *History) Of(ctx context.Context, o children.Owner) ([]*Revision, error) {
	all, err := h.Children.Of(ctx, o)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(r *Revision) bool { return r.DeletionTimestamp != nil })
	slices.SortFunc(all, func(a, b *Revision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Same returns those of all that remember t.
func Same(all []*Revision, t *corev1.PodTemplateSpec) ([]*Revision, error) {
	data, err := Data(t)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(r *Revision) bool { return !remembers(r, t, data) }), nil
}

// remembers tells whether r is of t, whose data is data. One that was written by a
// server with other ideas of what to write of a template is compared by what it means.
func remembers(r *Revision, t *corev1.PodTemplateSpec, data []byte) bool {
	if bytes.Equal(r.Data.Raw, data) {
		return true
	}
	had, err := Template(r)
	return err == nil && equality.Semantic.DeepEqual(had, t)
}

// Present returns the revision of o's template t, given all of o's, the last one last.
// If there is none it is made; if it is not the last one it becomes it. collisions, the
// count of names that were another's, may be nil; the count after is returned.
func (h *History) Present(ctx context.Context, o children.Owner, all []*Revision, t *corev1.PodTemplateSpec, collisions *int32) (*Revision, *int32, error) {
	same, err := Same(all, t)
	if err != nil {
		return nil, collisions, err
	}
	next := int64(1)
	if len(all) > 0 {
		next = all[len(all)-1].Revision + 1
	}
	if len(same) == 0 {
		return h.create(ctx, o, t, next, collisions)
	}
	now := same[len(same)-1]
	if now.Revision == next-1 {
		return now, collisions, nil
	}
	now = now.DeepCopy()
	now.Revision = next
	now, err = h.client.AppsV1().ControllerRevisions(now.Namespace).Update(ctx, now, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, collisions, loop.Quiet(err) // the cache is behind
	case err != nil:
		return nil, collisions, fmt.Errorf("renew a controller revision: %w", err)
	}
	return now, collisions, nil
}

func (h *History) create(ctx context.Context, o children.Owner, t *corev1.PodTemplateSpec, number int64, collisions *int32) (*Revision, *int32, error) {
	data, err := Data(t)
	if err != nil {
		return nil, collisions, err
	}
	for range maxCollisions {
		hash := h.cfg.Hash(t, data, collisions)
		labels := maps.Clone(t.Labels)
		if labels == nil {
			labels = make(map[string]string, 1)
		}
		labels[h.cfg.Label] = hash
		prefix := o.GetName()
		r := &Revision{
			ObjectMeta: metav1.ObjectMeta{
				Name: prefix[:min(len(prefix), maxPrefix)] + "-" + hash, Namespace: o.GetNamespace(),
				Labels: labels, Annotations: maps.Clone(o.GetAnnotations()),
			},
			Data: runtime.RawExtension{Raw: data}, Revision: number,
		}
		made, err := h.CreateOne(ctx, o, r)
		switch {
		case err == nil:
			return made, collisions, nil
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return nil, collisions, loop.Quiet(err)
		case !apierrors.IsAlreadyExists(err):
			return nil, collisions, err
		}
		had, err := h.client.AppsV1().ControllerRevisions(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return nil, collisions, fmt.Errorf("look up controller revision %s: %w", r.Name, err)
		}
		if metav1.IsControlledBy(had, o) && remembers(had, t, data) {
			return nil, collisions, loop.Quiet(fmt.Errorf("controller revision %s has been made and is not seen yet", r.Name))
		}
		n := int32(1)
		if collisions != nil {
			n = *collisions + 1
		}
		collisions = &n
	}
	return nil, collisions, fmt.Errorf("%d names for a controller revision of %s are others'", maxCollisions, o.GetName())
}

// Trim deletes the earliest of all that nothing needs, so that limit of those are left.
// Nil means no limit.
func (h *History) Trim(ctx context.Context, o children.Owner, all []*Revision, needed func(*Revision) bool, limit *int32) error {
	if limit == nil {
		return nil
	}
	old := slices.DeleteFunc(slices.Clone(all), needed)
	_, err := h.Delete(ctx, o, old[:max(len(old)-int(*limit), 0)])
	return err
}

// Data is what a revision of t remembers: a patch that puts t in the place of the
// owner's template.
func Data(t *corev1.PodTemplateSpec) ([]byte, error) {
	raw, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode the template: %w", err)
	}
	var m map[string]any // by way of a map, as kubectl does, for its order
	if err = json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("encode the template: %w", err)
	}
	m["$patch"] = "replace"
	raw, err = json.Marshal(map[string]any{"spec": map[string]any{"template": m}})
	if err != nil {
		return nil, fmt.Errorf("encode the template: %w", err)
	}
	return raw, nil
}

// Template is the template that r remembers.
func Template(r *Revision) (*corev1.PodTemplateSpec, error) {
	var data struct {
		Spec struct {
			Template *corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &data); err != nil {
		return nil, fmt.Errorf("controller revision %s: %w", r.Name, err)
	}
	if data.Spec.Template == nil {
		return nil, fmt.Errorf("controller revision %s has no template", r.Name)
	}
	return data.Spec.Template, nil
}

// DataHash is the Hash of StatefulSets.
func DataHash(_ *corev1.PodTemplateSpec, data []byte, collisions *int32) string {
	h := fnv.New32()
	_, _ = h.Write(data) // a hash takes everything
	n := int64(0)
	if collisions != nil {
		n = int64(*collisions)
	}
	_, _ = h.Write(strconv.AppendInt(nil, n, 10))
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// TemplateHash is the Hash of DaemonSets.
func TemplateHash(t *corev1.PodTemplateSpec, _ []byte, collisions *int32) string {
	return children.TemplateHash(t, collisions)
}
