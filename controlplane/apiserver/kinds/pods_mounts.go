// Rules for what containers mount.

package kinds

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podContext) volumeMounts(ctr *corev1.Container, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	devices, devicePaths := map[string]bool{}, map[string]bool{}
	for _, d := range ctr.VolumeDevices {
		devices[d.Name], devicePaths[d.DevicePath] = true, true
	}
	paths := map[string]bool{}
	for i := range ctr.VolumeMounts {
		m, at := &ctr.VolumeMounts[i], p.Index(i)
		if m.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		}
		if c.volumes[m.Name] == nil {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		if m.MountPath == "" {
			errs = append(errs, field.Required(at.Child("mountPath"), ""))
		}
		if paths[m.MountPath] {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		paths[m.MountPath] = true
		if devices[m.Name] {
			errs = append(errs, field.Invalid(at.Child("name"), m.Name, "must not already exist in volumeDevices"))
		}
		if devicePaths[m.MountPath] {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
		}
		if m.SubPath != "" {
			errs = append(errs, relativePath(m.SubPath, at.Child("subPath"))...)
		}
		if m.SubPathExpr != "" {
			if m.SubPath != "" {
				errs = append(errs, field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
			}
			errs = append(errs, relativePath(m.SubPathExpr, at.Child("subPathExpr"))...)
		}
		errs = append(errs, propagation(m, ctr, at)...)
	}
	return errs
}

// propagation checks how mounts travel between node and container.
func propagation(m *corev1.VolumeMount, ctr *corev1.Container, p *field.Path) field.ErrorList {
	errs := optionalOneOf(m.MountPropagation, p.Child("mountPropagation"),
		corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer, corev1.MountPropagationNone)
	privileged := ctr.SecurityContext != nil && deref(ctr.SecurityContext.Privileged)
	if deref(m.MountPropagation) == corev1.MountPropagationBidirectional && !privileged {
		errs = append(errs, field.Forbidden(p.Child("mountPropagation"), "Bidirectional mount propagation is available only to privileged containers"))
	}
	at := p.Child("recursiveReadOnly")
	errs = append(errs, optionalOneOf(m.RecursiveReadOnly, at,
		corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled)...)
	switch deref(m.RecursiveReadOnly) {
	case corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled:
		if !m.ReadOnly {
			errs = append(errs, field.Forbidden(at, "may only be specified when readOnly is true"))
		}
		if p := m.MountPropagation; p != nil && *p != corev1.MountPropagationNone {
			errs = append(errs, field.Forbidden(at, "may only be specified when mountPropagation is None or not specified"))
		}
	}
	return errs
}

// volumeDevices are volumes shown to a container as raw devices; only a claim
// can be one.
func (c *podContext) volumeDevices(ctr *corev1.Container, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	mounts, mountPaths := map[string]bool{}, map[string]bool{}
	for i := range ctr.VolumeMounts {
		mounts[ctr.VolumeMounts[i].Name], mountPaths[ctr.VolumeMounts[i].MountPath] = true, true
	}
	names, paths := map[string]bool{}, map[string]bool{}
	for i, d := range ctr.VolumeDevices {
		at := p.Index(i)
		v := c.volumes[d.Name]
		switch {
		case d.Name == "":
			errs = append(errs, field.Required(at.Child("name"), ""))
		case names[d.Name]:
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "must be unique"))
		case v == nil:
			errs = append(errs, field.NotFound(at.Child("name"), d.Name))
		case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		if mounts[d.Name] {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "must not already exist in volumeMounts"))
		}
		path := at.Child("devicePath")
		switch {
		case d.DevicePath == "":
			errs = append(errs, field.Required(path, ""))
		case paths[d.DevicePath]:
			errs = append(errs, field.Invalid(path, d.DevicePath, "must be unique"))
		case mountPaths[d.DevicePath]:
			errs = append(errs, field.Invalid(path, d.DevicePath, "must not already exist as a path in volumeMounts"))
		default:
			errs = append(errs, noBacksteps(d.DevicePath, path)...)
		}
		names[d.Name], paths[d.DevicePath] = true, true
	}
	return errs
}
