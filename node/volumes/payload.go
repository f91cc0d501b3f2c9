// This file gathers the files of volumes whose content comes from the API.

package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-project/hawser/node/downward"
)

// file is one file of a volume.
type file struct {
	data  []byte
	mode  os.FileMode
	owner *int64 // nil means the agent's user
}

// A collector gathers the files of one volume, by path within it.
type collector struct {
	ctx     context.Context //nolint:containedctx // lives for one call of setup
	objects Objects
	pod     *corev1.Pod
	facts   downward.Facts
	mode    os.FileMode
	files   map[string]file
}

// checkPath refuses paths that leave the volume or clash with the names that the
// atomic replacement uses.
func checkPath(path string) error {
	if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") {
		return fmt.Errorf("invalid path %q: must be relative, without dots for the parent directory and not begin with them", path)
	}
	return nil
}

func (c *collector) add(path string, data []byte, mode *int32) error {
	if err := checkPath(path); err != nil {
		return err
	}
	if c.files == nil {
		c.files = map[string]file{}
	}
	f := file{data: data, mode: c.mode}
	if mode != nil {
		f.mode = os.FileMode(*mode) & os.ModePerm
	}
	c.files[filepath.Clean(path)] = f
	return nil
}

func (c *collector) configMap(name string, items []corev1.KeyToPath, optional bool) error {
	cm, err := c.objects.ConfigMap(c.ctx, c.pod.Namespace, name)
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	for k, v := range cm.BinaryData {
		data[k] = v
	}
	return c.keys(data, items, optional, "config key")
}

func (c *collector) secret(name string, items []corev1.KeyToPath, optional bool) error {
	s, err := c.objects.Secret(c.ctx, c.pod.Namespace, name)
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	return c.keys(s.Data, items, optional, "secret key")
}

// keys adds all of data, or only items if there are any.
func (c *collector) keys(data map[string][]byte, items []corev1.KeyToPath, optional bool, what string) error {
	if len(items) == 0 {
		for k, v := range data {
			if err := c.add(k, v, nil); err != nil {
				return err
			}
		}
		return nil
	}
	for _, it := range items {
		v, ok := data[it.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("references non-existent %s: %s", what, it.Key)
		}
		if err := c.add(it.Path, v, it.Mode); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) downward(items []corev1.DownwardAPIVolumeFile) error {
	for _, it := range items {
		var (
			value string
			err   error
		)
		switch {
		case it.FieldRef != nil:
			value, err = downward.Field(c.pod, c.facts, it.FieldRef.FieldPath)
		case it.ResourceFieldRef != nil:
			value, err = downward.Resource(c.pod, c.facts, "", it.ResourceFieldRef)
		default:
			err = fmt.Errorf("item %q names neither a field nor a resource", it.Path)
		}
		if err != nil {
			return err
		}
		if err := c.add(it.Path, []byte(value), it.Mode); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) projected(sources []corev1.VolumeProjection) error {
	for _, s := range sources {
		var err error
		switch {
		case s.ConfigMap != nil:
			err = c.configMap(s.ConfigMap.Name, s.ConfigMap.Items, optional(s.ConfigMap.Optional))
		case s.Secret != nil:
			err = c.secret(s.Secret.Name, s.Secret.Items, optional(s.Secret.Optional))
		case s.DownwardAPI != nil:
			err = c.downward(s.DownwardAPI.Items)
		case s.ServiceAccountToken != nil:
			err = c.token(s.ServiceAccountToken)
		default:
			err = errors.New("this kind of projected source is not supported here: use configMap, secret, downwardAPI or serviceAccountToken")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) token(p *corev1.ServiceAccountTokenProjection) error {
	token, err := c.objects.Token(c.ctx, c.pod, p)
	if err != nil {
		return fmt.Errorf("fetch token: %w", err)
	}
	owner := commonUser(c.pod)
	var mode *int32
	if owner != nil || c.pod.Spec.SecurityContext != nil && c.pod.Spec.SecurityContext.FSGroup != nil {
		mode = new(int32(0o600))
	}
	if err := c.add(p.Path, []byte(token), mode); err != nil {
		return err
	}
	path := filepath.Clean(p.Path)
	f := c.files[path]
	f.owner = owner
	c.files[path] = f
	return nil
}

// commonUser is the user as whom all containers of a pod run; nil if they differ, or if one does
// not say. As in Kubernetes tokens belong to that user.
func commonUser(pod *corev1.Pod) *int64 {
	var ofPod, user *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		ofPod = sc.RunAsUser
	}
	for i, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		own := ofPod
		if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
			own = sc.RunAsUser
		}
		if own == nil || i > 0 && *own != *user {
			return nil
		}
		user = own
	}
	return user
}
