// Rules for the environment of containers.

package kinds

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podContext) env(vars []corev1.EnvVar, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, v := range vars {
		at := p.Index(i)
		if v.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs, messages(at.Child("name"), v.Name, validation.IsRelaxedEnvVarName(v.Name))...)
		}
		if v.ValueFrom != nil {
			errs = append(errs, c.envSource(v.ValueFrom, v.Value, at.Child("valueFrom"))...)
		}
	}
	return errs
}

func (c *podContext) envSource(s *corev1.EnvVarSource, value string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	n := 0
	if r := s.FieldRef; r != nil {
		n++
		errs = append(errs, fieldRef(r, envFields(), p.Child("fieldRef"))...)
	}
	if r := s.ResourceFieldRef; r != nil {
		n++
		errs = append(errs, resourceFieldRef(r, false, p.Child("resourceFieldRef"))...)
	}
	if r := s.ConfigMapKeyRef; r != nil {
		n++
		errs = append(errs, keyRef(r.Name, r.Key, p.Child("configMapKeyRef"))...)
	}
	if r := s.SecretKeyRef; r != nil {
		n++
		errs = append(errs, keyRef(r.Name, r.Key, p.Child("secretKeyRef"))...)
	}
	if r := s.FileKeyRef; r != nil {
		n++
		at := p.Child("fileKeyRef")
		errs = append(errs, required(r.VolumeName, at.Child("volumeName"))...)
		if source, known := c.volumes[r.VolumeName]; r.VolumeName != "" && !known {
			errs = append(errs, younger(field.NotFound(at.Child("volumeName"), r.VolumeName))...)
		} else if known && source.EmptyDir == nil {
			errs = append(errs, younger(field.Invalid(at.Child("volumeName"), r.VolumeName, "referenced volume must be of type emptyDir"))...)
		}
		errs = append(errs, required(r.Key, at.Child("key"))...)
		errs = append(errs, required(r.Path, at.Child("path"))...)
		errs = append(errs, relativePath(r.Path, at.Child("path"))...)
	}
	switch {
	case n == 0:
		errs = append(errs, field.Invalid(p, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case value != "":
		errs = append(errs, field.Invalid(p, "", "may not be specified when `value` is not empty"))
	case n > 1:
		errs = append(errs, field.Invalid(p, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func keyRef(name, key string, p *field.Path) field.ErrorList {
	errs := required(name, p.Child("name"))
	if key == "" {
		return append(errs, field.Required(p.Child("key"), ""))
	}
	return append(errs, messages(p.Child("key"), key, validation.IsConfigMapKey(key))...)
}

func envFrom(sources []corev1.EnvFromSource, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, s := range sources {
		at := p.Index(i)
		if s.Prefix != "" {
			errs = append(errs, messages(at.Child("prefix"), s.Prefix, validation.IsRelaxedEnvVarName(s.Prefix))...)
		}
		n := 0
		if s.ConfigMapRef != nil {
			n++
			errs = append(errs, required(s.ConfigMapRef.Name, at.Child("configMapRef", "name"))...)
		}
		if s.SecretRef != nil {
			n++
			errs = append(errs, required(s.SecretRef.Name, at.Child("secretRef", "name"))...)
		}
		switch {
		case n == 0:
			errs = append(errs, field.Invalid(p, "", "must specify one of: `configMapRef` or `secretRef`"))
		case n > 1:
			errs = append(errs, field.Invalid(p, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}

// envFields are the fields of a pod that an environment variable can show.
func envFields() []string {
	return []string{
		"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
	}
}

// fileFields are the fields of a pod that a file of a downward API volume can
// show.
func fileFields() []string {
	return []string{"metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"}
}

// fieldRef checks a reference to one of the allowed fields, or to a single
// label or annotation as in metadata.labels['key'].
func fieldRef(r *corev1.ObjectFieldSelector, allowed []string, p *field.Path) field.ErrorList {
	errs := required(r.APIVersion, p.Child("apiVersion"))
	if r.APIVersion != "" && r.APIVersion != "v1" {
		errs = append(errs, field.Invalid(p.Child("apiVersion"), r.APIVersion, "must be v1"))
	}
	at := p.Child("fieldPath")
	if r.FieldPath == "" {
		return append(errs, field.Required(at, ""))
	}
	base, key, subscripted := subscript(r.FieldPath)
	if subscripted {
		switch base {
		case "metadata.annotations":
			return append(errs, qualifiedName(strings.ToLower(key), at)...)
		case "metadata.labels":
			return append(errs, qualifiedName(key, at)...)
		default:
			return append(errs, field.Invalid(at, r.FieldPath, "does not support subscript"))
		}
	}
	switch {
	case slices.Contains(allowed, r.FieldPath):
	case slices.Contains(envFields(), r.FieldPath), slices.Contains(fileFields(), r.FieldPath),
		slices.Contains([]string{"spec.restartPolicy", "spec.schedulerName", "status.phase"}, r.FieldPath):
		errs = append(errs, field.NotSupported(at, r.FieldPath, allowed))
	default:
		errs = append(errs, field.Invalid(at, r.FieldPath, "error converting fieldPath: field label not supported: "+r.FieldPath))
	}
	return errs
}

// subscript splits path['key'].
func subscript(path string) (string, string, bool) {
	rest, ok := strings.CutSuffix(path, "']")
	if !ok {
		return path, "", false
	}
	base, key, ok := strings.Cut(rest, "['")
	if !ok || base == "" {
		return path, "", false
	}
	return base, key, true
}

// resourceFieldRef checks a reference to a container's requests or limits. In
// a volume it must say which container's.
func resourceFieldRef(r *corev1.ResourceFieldSelector, volume bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if volume {
		errs = append(errs, required(r.ContainerName, p.Child("containerName"))...)
	}
	if r.Resource == "" {
		return append(errs, field.Required(p.Child("resource"), ""))
	}
	kind, name, _ := strings.Cut(r.Resource, ".")
	known := name == "cpu" || name == "memory" || name == "ephemeral-storage" || IsHugePages(corev1.ResourceName(name))
	if kind != "limits" && kind != "requests" || !known {
		return append(errs, field.NotSupported(p.Child("resource"), r.Resource, []string{
			"limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory",
		}))
	}
	return append(errs, divisor(r.Divisor, name, p.Child("divisor"))...)
}

func divisor(d resource.Quantity, name string, p *field.Path) field.ErrorList {
	if d.IsZero() {
		return nil
	}
	allowed := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	switch {
	case name == "cpu":
		allowed, name = []string{"1m", "1"}, "cpu"
	case name == "ephemeral-storage":
		name = "local ephemeral storage"
	case name != "memory":
		name = "hugepages"
	}
	if slices.Contains(allowed, d.String()) {
		return nil
	}
	list := strings.Join(allowed, ", ")
	if name == "cpu" {
		list = "1m and 1"
	}
	return field.ErrorList{field.Invalid(p, d.String(), "only divisor's values "+list+" are supported with the "+name+" resource")}
}
