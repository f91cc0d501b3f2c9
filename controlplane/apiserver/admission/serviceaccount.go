// Service accounts of pods: each has one, and a volume with its token.

package admission

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"
)

const (
	defaultAccount = "default"
	// defaultTries is how often the default account, which follows its namespace at
	// once, is looked for.
	defaultTries = 10

	// tokenVolume begins the name of the volume, tokenPath is where it is mounted.
	tokenVolume = "kube-api-access-"
	tokenPath   = "/var/run/secrets/kubernetes.io/serviceaccount"
	// tokenSeconds is the life of the token, by which Kubernetes knows those that were
	// mounted without being asked for.
	tokenSeconds = 3607
	rootsName    = "kube-root-ca.crt" // the ConfigMap that package rootca keeps
)

// ServiceAccount gives a pod that names no service account the one called default,
// refuses one whose account does not exist, and gives it what the account says: secrets
// to pull images with and, if mount is true and neither the pod nor the account declines,
// a volume with a token of the account. Mirror pods have none of that.
func ServiceAccount(mount bool) admission.Interface {
	s := &serviceAccounts{mount: mount}
	s.pods = onPods(s.give, admission.Create)
	return s
}

type serviceAccounts struct {
	*pods
	mount    bool
	client   kubernetes.Interface
	accounts corelisters.ServiceAccountLister
}

// SetExternalKubeClientSet and SetExternalKubeInformerFactory are called by the
// server when it makes the chain.
func (s *serviceAccounts) SetExternalKubeClientSet(c kubernetes.Interface) { s.client = c }

func (s *serviceAccounts) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	s.accounts = f.Core().V1().ServiceAccounts().Lister()
}

func (s *serviceAccounts) ValidateInitialization() error {
	if s.client == nil || s.accounts == nil {
		return errors.New("service account: no client")
	}
	return nil
}

func (s *serviceAccounts) give(ctx context.Context, a admission.Attributes, p *corev1.Pod) error {
	if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return checkMirror(a, p)
	}
	if p.Spec.ServiceAccountName == "" {
		p.Spec.ServiceAccountName = p.Spec.DeprecatedServiceAccount
	}
	if p.Spec.ServiceAccountName == "" {
		p.Spec.ServiceAccountName = defaultAccount
	}
	p.Spec.DeprecatedServiceAccount = p.Spec.ServiceAccountName
	account, err := s.account(ctx, a.GetNamespace(), p.Spec.ServiceAccountName)
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("error looking up service account %s/%s: %w", a.GetNamespace(), p.Spec.ServiceAccountName, err))
	}
	if s.mount && automounts(account, p) {
		mountToken(p)
	}
	if len(p.Spec.ImagePullSecrets) == 0 {
		p.Spec.ImagePullSecrets = slices.Clone(account.ImagePullSecrets)
	}
	return nil
}

// account returns the named account. What the cache does not have is asked for; the
// default one of a namespace that was made just now is waited for.
func (s *serviceAccounts) account(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if account, err := s.accounts.ServiceAccounts(namespace).Get(name); err == nil {
		return account, nil
	}
	tries := 1
	if name == defaultAccount {
		tries = defaultTries
	}
	pause := 100*time.Millisecond + rand.N(100*time.Millisecond)
	for {
		account, err := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
		if tries--; err == nil || !apierrors.IsNotFound(err) || tries == 0 {
			return account, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// automounts tells whether the pod is to have a token: it says so, or its account does,
// or neither says anything.
func automounts(account *corev1.ServiceAccount, p *corev1.Pod) bool {
	if p.Spec.AutomountServiceAccountToken != nil {
		return *p.Spec.AutomountServiceAccountToken
	}
	return ptr.Deref(account.AutomountServiceAccountToken, true)
}

// mountToken mounts the token in each container that has nothing at its place.
func mountToken(p *corev1.Pod) {
	name := ""
	for i := range p.Spec.Volumes {
		if strings.HasPrefix(p.Spec.Volumes[i].Name, tokenVolume) {
			name = p.Spec.Volumes[i].Name
			break
		}
	}
	has := name != ""
	if !has {
		name = names.SimpleNameGenerator.GenerateName(tokenVolume)
	}
	needed := false
	for _, containers := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenPath }) {
				continue
			}
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenPath})
			needed = true
		}
	}
	if needed && !has {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenSource()}})
	}
}

// tokenSource is the volume: the token, whom to believe for the API server, and the
// pod's namespace.
func tokenSource() *corev1.ProjectedVolumeSource {
	return &corev1.ProjectedVolumeSource{
		DefaultMode: ptr.To(corev1.ProjectedVolumeSourceDefaultMode),
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](tokenSeconds)}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: rootsName}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
				{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
			}}},
		},
	}
}

// checkMirror refuses mirror pods that name an account or a secret: no server gives
// those to what a node runs by itself.
func checkMirror(a admission.Attributes, p *corev1.Pod) error {
	switch {
	case p.Spec.ServiceAccountName != "":
		return admission.NewForbidden(a, errors.New("a mirror pod may not reference service accounts"))
	case len(p.Spec.ImagePullSecrets) > 0 || slices.ContainsFunc(p.Spec.Volumes, ofSecret) || envOfSecret(&p.Spec):
		return admission.NewForbidden(a, errors.New("a mirror pod may not reference secrets"))
	}
	for i := range p.Spec.Volumes {
		if v := p.Spec.Volumes[i].Projected; v != nil && slices.ContainsFunc(v.Sources, func(s corev1.VolumeProjection) bool { return s.ServiceAccountToken != nil }) {
			return admission.NewForbidden(a, errors.New("a mirror pod may not use service account token volume projections"))
		}
	}
	return nil
}

// ofSecret tells whether a volume is, or is mounted by means of, a Secret.
func ofSecret(v corev1.Volume) bool {
	return v.Secret != nil || v.AzureFile != nil || v.CephFS != nil && v.CephFS.SecretRef != nil || v.Cinder != nil && v.Cinder.SecretRef != nil ||
		v.FlexVolume != nil && v.FlexVolume.SecretRef != nil || v.RBD != nil && v.RBD.SecretRef != nil || v.ScaleIO != nil && v.ScaleIO.SecretRef != nil ||
		v.ISCSI != nil && v.ISCSI.SecretRef != nil || v.StorageOS != nil && v.StorageOS.SecretRef != nil || v.CSI != nil && v.CSI.NodePublishSecretRef != nil ||
		v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool { return s.Secret != nil })
}

// envOfSecret tells whether the environment of a container comes from a Secret. A pod
// that is made has no ephemeral ones.
func envOfSecret(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil }) ||
			slices.ContainsFunc(c.EnvFrom, func(f corev1.EnvFromSource) bool { return f.SecretRef != nil })
	})
}
