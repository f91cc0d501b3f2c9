// Stores: a row of the table made into REST storage on etcd.

package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	etcdfeature "k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/hawser-project/hawser/controlplane/apiserver/printers"
)

// keyPrefix is where everything lies in etcd, as in any Kubernetes.
const keyPrefix = "/registry"

// deleteWorkers is how many objects of a collection are deleted at a time.
const deleteWorkers = 4

// backend makes stores on one etcd client. The library would open a connection
// for each resource; one carries them all.
type backend struct {
	scheme    *runtime.Scheme
	codecs    serializer.CodecFactory
	client    *clientv3.Client
	compactor interface {
		etcd3.Compactor
		Stop()
	}
	factory *serverstorage.DefaultStorageFactory
	tracker flowcontrolrequest.StorageObjectCountTracker
	ciphers value.ResourceTransformers
	ttl     time.Duration // of rows that expire
	collect bool          // a garbage collector sees to dependents
}

func newBackend(ctx context.Context, scheme *runtime.Scheme, codecs serializer.CodecFactory, client *clientv3.Client, tracker flowcontrolrequest.StorageObjectCountTracker, ciphers value.ResourceTransformers, cfg *Config) *backend {
	config := storagebackend.NewDefaultConfig(keyPrefix, nil)
	enabled := serverstorage.NewResourceConfig()
	for gv := range groups() {
		enabled.EnableVersions(gv)
	}
	// The library learns from each etcd endpoint it dials whether it can be
	// asked for a watch's progress. The in-process client has no endpoints.
	etcdfeature.DefaultFeatureSupportChecker.CheckClient(ctx, endpoint{client}, storage.RequestWatchProgress)
	return &backend{
		scheme: scheme, codecs: codecs, client: client, tracker: tracker, ciphers: ciphers, ttl: cfg.EventTTL, collect: cfg.EnableGarbageCollector,
		compactor: etcd3.NewCompactor(client, config.CompactionInterval, clock.RealClock{}, nil),
		factory: serverstorage.NewDefaultStorageFactory(*config, runtime.ContentTypeProtobuf, codecs,
			serverstorage.NewDefaultResourceEncodingConfig(scheme), enabled, nil),
	}
}

// close stops what newBackend started. The stores must be gone by then.
func (b *backend) close() { b.compactor.Stop() }

// endpoint gives a client without endpoints one, by name.
type endpoint struct{ *clientv3.Client }

func (e endpoint) Endpoints() []string {
	if eps := e.Client.Endpoints(); len(eps) > 0 {
		return eps
	}
	return []string{"embedded"}
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (b *backend) GetRESTOptions(gr schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	config, err := b.factory.NewConfig(gr, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("storage of %s: %w", gr, err)
	}
	return b.options(config, b.factory.ResourcePrefix(gr)), nil
}

// options are those of a kind that is stored under prefix.
func (b *backend) options(config *storagebackend.ConfigForResource, prefix string) generic.RESTOptions {
	return generic.RESTOptions{
		StorageConfig:             config,
		Decorator:                 b.open,
		DeleteCollectionWorkers:   deleteWorkers,
		EnableGarbageCollection:   b.collect,
		ResourcePrefix:            prefix,
		CountMetricPollPeriod:     time.Minute,
		StorageObjectCountTracker: b.tracker,
	}
}

// open is a generic.StorageDecorator: etcd behind a watch cache. Events have none, as in
// Kubernetes: a cache would hold the events of an hour for those few who read them.
func (b *backend) open(c *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error),
	newFunc, newListFunc func() runtime.Object, attrs storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	versioner := storage.APIObjectVersioner{}
	client := &kubernetes.Client{Client: b.client}
	client.Kubernetes = sizedClient{steadyClient{client}}
	raw, err := etcd3.New(client, b.compactor, c.Codec, newFunc, newListFunc, c.Prefix, prefix, c.GroupResource,
		b.ciphers.TransformerForResource(c.GroupResource), c.LeaseManagerConfig, etcd3.NewDefaultDecoder(c.Codec, versioner), versioner)
	if err != nil {
		return nil, nil, fmt.Errorf("store of %s: %w", c.GroupResource, err)
	}
	var once sync.Once
	if c.GroupResource == corev1.Resource("events") {
		return raw, func() { once.Do(raw.Close) }, nil
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: sharedParts{raw}, Versioner: versioner, GroupResource: c.GroupResource, EventsHistoryWindow: c.EventsHistoryWindow,
		ResourcePrefix: prefix, KeyFunc: key, NewFunc: newFunc, NewListFunc: newListFunc,
		GetAttrsFunc: attrs, IndexerFuncs: triggers, Indexers: indexers, Codec: c.Codec,
	})
	if err != nil {
		raw.Close()
		return nil, nil, fmt.Errorf("watch cache of %s: %w", c.GroupResource, err)
	}
	delegator := cacher.NewCacheDelegator(cached, raw)
	return delegator, func() {
		once.Do(func() {
			delegator.Stop()
			cached.Stop()
			raw.Close()
		})
	}, nil
}

// resourceREST is a stored resource with what discovery says of it.
type resourceREST struct {
	*genericregistry.Store
	short, categories []string
}

func (r resourceREST) ShortNames() []string { return r.short }
func (r resourceREST) Categories() []string { return r.categories }

// resource makes the storage of r.
func (b *backend) resource(r *row) (resourceREST, error) {
	s := newStrategy(b.scheme, r)
	attrs := func(obj runtime.Object) (labels.Set, fields.Set, error) {
		m, ok := obj.(interface{ GetLabels() map[string]string })
		if !ok {
			return nil, nil, fmt.Errorf("not a %s: %T", r.kind, obj)
		}
		return m.GetLabels(), r.fieldsOf(obj), nil
	}
	store := &genericregistry.Store{
		NewFunc: r.newObject, NewListFunc: r.newList,
		DefaultQualifiedResource:  r.gr(),
		SingularQualifiedResource: schema.GroupResource{Group: r.gv.Group, Resource: r.singular},
		CreateStrategy:            s, UpdateStrategy: s, DeleteStrategy: s, ResetFieldsStrategy: s,
		TableConvertor: tableFor(r.gr()),
		PredicateFunc: func(l labels.Selector, f fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: l, Field: f, GetAttrs: attrs, IndexFields: r.indexes()}
		},
	}
	if r.grace != nil {
		store.DeleteStrategy = gracefulStrategy{s}
		store.ReturnDeletedObject = true
	}
	if r.ttl {
		seconds := uint64(b.ttl / time.Second)
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return seconds, nil }
	}
	options := &generic.StoreOptions{RESTOptions: b, AttrFunc: attrs}
	if r.indexed != "" {
		value := func(obj runtime.Object) string { return r.fieldsOf(obj)[r.indexed] }
		options.TriggerFunc = storage.IndexerFuncs{r.indexed: value}
		options.Indexers = &cache.Indexers{storage.FieldIndex(r.indexed): func(obj any) ([]string, error) {
			return []string{value(obj.(runtime.Object))}, nil
		}}
	}
	if err := store.CompleteWithOptions(options); err != nil {
		return resourceREST{}, fmt.Errorf("install %s: %w", r.gr(), err)
	}
	out := resourceREST{Store: store, short: r.short}
	if r.inAll {
		out.categories = []string{"all"}
	}
	return out, nil
}

func (r *row) indexes() []string {
	if r.indexed == "" {
		return nil
	}
	return []string{r.indexed}
}

// tableFor prints a resource as kubectl's users know it, or as name and age.
func tableFor(gr schema.GroupResource) rest.TableConvertor {
	if t := printers.For(gr); t != nil {
		return t
	}
	return rest.NewDefaultTableConvertor(gr)
}
