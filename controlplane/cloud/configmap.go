package cloud

// An inventory in a ConfigMap, which is watched.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/yaml"

	"github.com/hawser-project/hawser/auth/kubeauth/place"
)

const (
	// DefaultKey is the key of a ConfigMap at which its inventory is.
	DefaultKey = "inventory.yaml"
	// firstLook is how long Initialize waits for the ConfigMap, so that nobody is told that
	// it is not known yet.
	firstLook = 5 * time.Second
)

// A reference is a file of --cloud-config that says where the inventory is.
type reference struct {
	ConfigMap string `json:"configMap"`     // NAMESPACE/NAME
	Key       string `json:"key,omitempty"` // DefaultKey by default
}

// parseReference returns nil if b is none.
func parseReference(b []byte) (*reference, error) {
	var is struct {
		ConfigMap any `json:"configMap"`
	}
	if err := yaml.Unmarshal(b, &is); err != nil || is.ConfigMap == nil {
		return nil, nil //nolint:nilerr // whoever reads it as an inventory says what is wrong
	}
	r := &reference{}
	err := yaml.UnmarshalStrict(b, r)
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, place.Of(b, err)
	}
	r.Key = cmp.Or(r.Key, DefaultKey)
	return r, nil
}

func (r *reference) check() error {
	namespace, name, ok := strings.Cut(r.ConfigMap, "/")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("configMap: %q: want NAMESPACE/NAME", r.ConfigMap)
	}
	if r.Key != "" && len(validation.IsConfigMapKey(r.Key)) > 0 {
		return fmt.Errorf("key: %q is no key of a ConfigMap", r.Key)
	}
	return nil
}

// watched is the inventory of a ConfigMap. One that is not there is an error, and never an
// inventory without machines: nodes are deleted for the latter. A broken one changes
// nothing.
type watched struct {
	reference
	log    *slog.Logger
	events record.EventRecorder // set before anything is watched
	synced cache.InformerSynced // likewise; nil as long as nobody has started

	mu      sync.Mutex // guards the following
	current *Inventory // nil if there is none
	why     string     // there is none
	told    string     // the fault that was told last
}

// get returns the last inventory that could be read, or why there is none.
func (w *watched) get() (*Inventory, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.current != nil:
		return w.current, nil
	case w.why != "":
		return nil, errors.New(w.why)
	case w.synced == nil || !w.synced():
		return nil, fmt.Errorf("inventory of machines: ConfigMap %s has not been read yet", w.ConfigMap)
	}
	return nil, w.absent()
}

func (w *watched) absent() error {
	return fmt.Errorf("inventory of machines: ConfigMap %s is not there", w.ConfigMap)
}

// start watches until stop is closed. It returns when the ConfigMap has been asked for, or
// after firstLook.
func (w *watched) start(client kubernetes.Interface, stop <-chan struct{}) error {
	namespace, name, _ := strings.Cut(w.ConfigMap, "/")
	ctx := wait.ContextForChannel(stop)
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	w.events = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
	f := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}))
	inf := f.Core().V1().ConfigMaps().Informer()
	take := func(o any) {
		if m, ok := o.(*corev1.ConfigMap); ok && m.Name == name {
			w.take(m)
		}
	}
	h, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    take,
		UpdateFunc: func(_, o any) { take(o) },
		DeleteFunc: func(o any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil && key == w.ConfigMap {
				w.lose()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch ConfigMap %s: %w", w.ConfigMap, err)
	}
	w.mu.Lock()
	w.synced = h.HasSynced
	w.mu.Unlock()
	f.Start(ctx.Done())
	first, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	cache.WaitForCacheSync(first.Done(), h.HasSynced)
	if _, err := w.get(); err != nil {
		w.log.Warn("no node is initialized or deleted, and no service has an address", "err", err)
	}
	return nil
}

// take makes m's inventory the current one, unless it is broken.
func (w *watched) take(m *corev1.ConfigMap) {
	v, err := (*Inventory)(nil), fmt.Errorf("key %s: it is not there", w.Key)
	if text, ok := m.Data[w.Key]; ok {
		if v, err = ParseInventory([]byte(text)); err != nil {
			err = fmt.Errorf("key %s: %w", w.Key, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.current, w.why, w.told = v, "", ""
		w.log.Info("the inventory of machines is read", "configmap", w.ConfigMap, "machines", len(v.Machines))
		return
	}
	stays := "the inventory that was read before stays in use"
	if w.current == nil {
		w.why = fmt.Sprintf("inventory of machines: ConfigMap %s, %v", w.ConfigMap, err)
		stays = "no node is initialized or deleted"
	}
	if text := err.Error(); text != w.told {
		w.told = text
		w.log.Warn(stays, "configmap", w.ConfigMap, "err", err)
		w.events.Eventf(m, corev1.EventTypeWarning, "InventoryBroken", "%v: %s", err, stays)
	}
}

// lose is for a ConfigMap that was deleted.
func (w *watched) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current, w.why, w.told = nil, "", ""
	w.log.Warn("no node is initialized or deleted", "err", w.absent())
}
