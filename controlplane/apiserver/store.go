// Stores: where the objects of a kind lie in etcd.

package apiserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
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
	collect bool // a garbage collector sees to dependents
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
		scheme: scheme, codecs: codecs, client: client, tracker: tracker, ciphers: ciphers, collect: cfg.EnableGarbageCollector,
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
		return restorable{Interface: raw}, func() { once.Do(raw.Close) }, nil
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: sharedParts{ownStream{raw, c.GroupResource.String()}}, Versioner: versioner, GroupResource: c.GroupResource, EventsHistoryWindow: c.EventsHistoryWindow,
		ResourcePrefix: prefix, KeyFunc: key, NewFunc: newFunc, NewListFunc: newListFunc,
		GetAttrsFunc: attrs, IndexerFuncs: triggers, Indexers: indexers, Codec: c.Codec,
	})
	if err != nil {
		raw.Close()
		return nil, nil, fmt.Errorf("watch cache of %s: %w", c.GroupResource, err)
	}
	delegator := cacher.NewCacheDelegator(cached, raw)
	synced := func() (uint64, bool) {
		if !cached.Ready() {
			return 0, false
		}
		rv, err := cached.LastSyncResourceVersion()
		return rv, err == nil
	}
	return restorable{delegator, synced}, func() {
		once.Do(func() {
			delegator.Stop()
			cached.Stop()
			raw.Close()
		})
	}, nil
}
